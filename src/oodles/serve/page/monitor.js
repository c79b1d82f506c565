// The OOD rate of everything the service has scored, window by window with control limits; asked for while visible.
"use strict";

const EVERY = 4; // seconds
const AFTER_AN_ERROR = 15;
const RATE_PLOT = { height: 220, top: 12, bottom: 40, left: 46, right: 12 };
const SHOWN_WINDOWS = 30; // in the table
const LEVEL_DECADES = 6; // factors of ten that the bar of the alarm level spans

const monitor = { guard: null, record: null, timer: null, alarm: null };

function watch() {
  clearTimeout(monitor.timer);
  if (!document.hidden && state.guard) monitor.timer = setTimeout(poll, 0);
}

async function poll() {
  const name = state.guard.name;
  let next = EVERY;
  try {
    const record = await ask(`guards/${encodeURIComponent(name)}/monitor`, { background: true });
    if (name !== state.guard.name) return;
    Object.assign(monitor, { guard: name, record });
    showMonitor();
  } catch (error) {
    byId("rate-caption").textContent = `Not up to date: ${error.message}.`;
    next = AFTER_AN_ERROR;
  }
  clearTimeout(monitor.timer);
  if (!document.hidden) monitor.timer = setTimeout(poll, 1000 * next);
}

function prepareMonitor() {
  document.addEventListener("visibilitychange", watch);
  drawAtWidth(byId("rate-chart"), () => monitor.record && drawRate());
}

function showMonitor() {
  const { inputs, rejected, rate, expected, evidence, alarm, windows } = monitor.record;
  const strongest = Math.max(evidence.rejections, evidence.p_values ?? 0);
  byId("monitor-facts").replaceChildren(
    fact("Inputs", whole(inputs)),
    fact("Rejected", whole(rejected), inputs ? percent(rate) : null),
    fact("Expected rate", percent(expected.rate), `at most ${percent(expected.upper)}, given the size of the calibration set`),
  );
  showAlarm(alarm, strongest / evidence.alarm_at);
  drawRate();
  byId("windows").hidden = !windows.length && !monitor.record.classes.length;
  if (byId("windows").open || !byId("windows-tables").childElementCount) showTables();
}

/**
 * The alarm, and how close the evidence is to one: evidence multiplies, so the bar is its logarithm. The live region
 * changes only when the alarm does.
 */
function showAlarm(alarm, evidence) {
  const level = Math.max(0, Math.min(1, 1 + Math.log10(Math.max(evidence, 1e-9)) / LEVEL_DECADES));
  byId("level-bar").style.width = `${100 * level}%`;
  byId("level-bar").className = alarm || evidence >= 1 ? "low" : "";
  byId("level-words").textContent = `Alarm level: ${evidence >= 1 ? "above the line" : `${whole(Math.round(100 * level))}${SPACE}% of the way to an alarm`}. The right end is the line; each tenth is a factor of ${number(10 ** (LEVEL_DECADES / 10), 2)} in evidence.`;
  byId("alarm-dot").hidden = !alarm;
  const text = alarm ? `Alarm since input ${whole(alarm.since)}: ${alarm.message}` : evidence >= 1 ? "Evidence above the line." : "No alarm so far.";
  if (text === byId("alarm").textContent) return;
  byId("alarm").textContent = text;
  byId("alarm").className = alarm || evidence >= 1 ? "notice" : "good";
}

function showTables() {
  const { windows, classes } = monitor.record;
  const rows = windows.slice(-SHOWN_WINDOWS).reverse().map((each) => [`${whole(each.first)} to ${whole(each.last)}`, percent(each.rate), `${percent(each.low)} to ${percent(each.high)}`]);
  const counts = classes.map(({ name, count }) => [name, whole(count)]);
  byId("windows-tables").replaceChildren(
    ...(rows.length ? [table(`The last ${counted(rows.length, "window")}, newest first`, ["Inputs", "OOD rate", "Control limits"], rows)] : []),
    ...(counts.length ? [table("Predicted classes", ["Class", "Inputs"], counts)] : []),
  );
}

// The chart --------------------------------------------------------------------------------------

const isOutside = (each) => each.rate > each.high || each.rate < each.low;

function drawRate() {
  const { windows, expected } = monitor.record;
  const box = byId("rate-chart");
  const outside = windows.filter(isOutside).length;
  if (!windows.length) {
    box.replaceChildren();
    byId("rate-caption").textContent = "Nothing has been scored yet. The chart will show the OOD rate of each window of inputs, with its control limits.";
    return;
  }
  const last = windows.at(-1);
  const words = `In the latest window, inputs ${whole(last.first)} to ${whole(last.last)}, the OOD rate was ${percent(last.rate)}; its control limits are ${percent(last.low)} to ${percent(last.high)}. ` +
    `${outside ? counted(outside, "window") : "None"} of ${whole(windows.length)} ${outside === 1 || !outside ? "is" : "are"} outside the limits.`;
  byId("rate-caption").textContent = `${words} Band: control limits of each window, not corrected for repeated looks; dashed: the expected rate.`;
  if (box.clientWidth) box.replaceChildren(rateChart(windows, expected.rate, box.clientWidth, `OOD rate over time. ${words}`));
}

function rateChart(windows, expected, width, alternative) {
  const { height, top, bottom, left, right } = RATE_PLOT;
  const base = height - bottom;
  const highest = Math.min(1, 1.15 * Math.max(expected, ...windows.map((each) => Math.max(each.rate, each.high))) || 1);
  const slot = (width - left - right) / Math.max(windows.length, 12);
  const x = (index) => left + slot * (index + 0.5);
  const y = (rate) => base - (rate / highest) * (base - top);
  const chart = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": alternative });
  for (const rate of ticks(0, highest, 4)) {
    chart.append(
      makeSvg("line", { x1: left, x2: width - right, y1: y(rate), y2: y(rate), class: "grid" }),
      makeSvg("text", { x: left - 6, y: y(rate) + 4, "text-anchor": "end", class: "tick" }, `${number(100 * rate, 3)}${SPACE}%`),
    );
  }
  const steps = (limit) => windows.flatMap((each, index) => [[x(index) - slot / 2, y(each[limit])], [x(index) + slot / 2, y(each[limit])]]);
  const band = [...steps("high"), ...steps("low").reverse()];
  chart.append(
    makeSvg("path", { d: `M${band.map((point) => point.join(" ")).join("L")}Z`, class: "band" }),
    makeSvg("line", { x1: left, x2: width - right, y1: y(expected), y2: y(expected), class: "expected" }),
    makeSvg("path", { d: `M${windows.map((each, index) => `${x(index)} ${y(each.rate)}`).join("L")}`, class: "rate" }),
    ...windows.map((each, index) => windowMark(x(index), y(each.rate), isOutside(each))),
    ...windowNumbers(windows, x, base, slot),
    makeSvg("text", { x: width - right, y: height - 4, "text-anchor": "end", class: "tick" }, "inputs, oldest first"),
  );
  return chart;
}

/** A window: a dot, or a larger diamond if it is outside its limits. */
function windowMark(x, y, outside) {
  if (!outside) return makeSvg("circle", { cx: x, cy: y, r: 2.5, class: "inside" });
  return makeSvg("path", { d: `M${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}L${x - 6} ${y}Z`, class: "outside" });
}

function windowNumbers(windows, x, base, slot) {
  const every = Math.max(1, Math.ceil(64 / slot));
  return windows.flatMap((each, index) => (index % every ? [] : [makeSvg("text", { x: x(index), y: base + 16, "text-anchor": "middle", class: "tick" }, whole(each.last))]));
}
