// The ID histogram with the scores of recent inputs, and the threshold on it, which can be moved and saved.
"use strict";

const PLOT = { height: 236, top: 34, bottom: 50, side: 10 };
const RATES = [0.9, 0.95, 0.99];

const scale = { low: 0, high: 1, width: 0 }; // of the chart as it was drawn last

const across = (score) => PLOT.side + ((clamped(score) - scale.low) / (scale.high - scale.low)) * (scale.width - 2 * PLOT.side);
const clamped = (score) => Math.min(scale.high, Math.max(scale.low, score));
const scoreAt = (x) => scale.low + ((x - PLOT.side) / (scale.width - 2 * PLOT.side)) * (scale.high - scale.low);

// Drawing ----------------------------------------------------------------------------------------

function drawScores() {
  const box = byId("histogram");
  if (!state.guard) return;
  showEffects(keptShare(state.guard, state.draft));
  scale.width = box.clientWidth;
  if (!scale.width) return; // another tab is open; its width is noticed when it is shown
  const items = scoredItems();
  [scale.low, scale.high] = scoreRange(state.guard, items.map((item) => item.result.score), state.draft);
  const base = PLOT.height - PLOT.bottom;
  const chart = makeSvg("svg", { viewBox: `0 0 ${scale.width} ${PLOT.height}`, width: scale.width, height: PLOT.height, role: "img", "aria-label": scoreWords(items) });
  chart.append(
    makeSvg("rect", { id: "rejected-side", x: PLOT.side, y: PLOT.top, height: base - PLOT.top + 14, width: 0 }),
    ...histogramBars(base),
    ...axis(base + 14),
    ...items.map((item) => inputLine(item, base)),
    makeSvg("line", { id: "own-threshold", y1: PLOT.top, y2: base + 14, class: "own" }),
    makeSvg("text", { id: "rejected-label", y: PLOT.top + 13, "text-anchor": "end", class: "side" }, "\u25c2 rejected"),
    makeSvg("text", { id: "accepted-label", y: PLOT.top + 13, class: "side" }, "accepted \u25b8"),
    ...selectedMark(base),
  );
  box.replaceChildren(chart);
  showThreshold();
}

function histogramBars(base) {
  if (!state.guard.calibration) return [];
  const { edges, counts } = state.guard.calibration;
  const densities = counts.map((count, index) => count / (edges[index + 1] - edges[index]));
  const tallest = Math.max(...densities);
  return densities.map((density, index) => {
    const height = (density / tallest) * (base - PLOT.top - 20);
    const [left, right] = [across(edges[index]), across(edges[index + 1])];
    return makeSvg("rect", { x: left, y: base - height, width: Math.max(0.5, right - left - 0.6), height, class: "id-bar" });
  });
}

function axis(y) {
  const line = makeSvg("line", { x1: PLOT.side, x2: scale.width - PLOT.side, y1: y, y2: y, class: "axis" });
  const marks = ticks(scale.low, scale.high, scale.width / 90).map((score) => [
    makeSvg("line", { x1: across(score), x2: across(score), y1: y, y2: y + 4, class: "axis" }),
    makeSvg("text", { x: across(score), y: y + 17, "text-anchor": "middle", class: "tick" }, number(score, 6)),
  ]);
  const name = makeSvg("text", { x: scale.width - PLOT.side, y: y + 31, "text-anchor": "end", class: "tick" }, "score (larger: more like the training data)");
  return [line, ...marks.flat(), name];
}

/** A recent input below the histogram; one whose score is beyond the chart is an arrow at its edge. */
function inputLine(item, base) {
  const { score } = item.result;
  const x = across(score);
  if (score === clamped(score)) return (item.line = makeSvg("line", { x1: x, x2: x, y1: base + 2, y2: base + 13 }));
  const to = score < scale.low ? -7 : 7;
  return (item.line = makeSvg("path", { d: `M${x} ${base + 3} L${x + to} ${base + 8} L${x} ${base + 13} Z` }));
}

function selectedMark(base) {
  const item = state.selected;
  if (!item || item.guard !== state.guard.name || !isScored(item)) return [];
  const { score } = item.result;
  const x = across(score);
  const right = x < 90 || (x >= across(state.draft) && x < scale.width - 90); // away from the threshold, if there is room
  const beyond = score === clamped(score) ? "" : ` (${number(score)}, beyond the chart)`;
  return [
    makeSvg("line", { x1: x, x2: x, y1: PLOT.top + 30, y2: base + 14, class: "selected" }),
    makeSvg("circle", { cx: x, cy: PLOT.top + 30, r: 5, class: "selected" }),
    makeSvg("text", { x: x + (right ? 9 : -9), y: PLOT.top + 34, "text-anchor": right ? "start" : "end", class: "selected" }, `this input${beyond}`),
  ];
}

function scoreWords(items) {
  const { threshold, calibration } = state.guard;
  const selected = state.selected && isScored(state.selected) ? ` This input's score is ${number(state.selected.result.score)}.` : "";
  const middle = calibration ? `${counted(threshold.calibration_size, "ID score")} from ${number(calibration.edges[0])} to ${number(calibration.edges.at(-1))}, median ${number(calibration.quantiles[50])}.` : "No ID scores are known.";
  return `Histogram of scores. ${middle} The threshold in use is ${number(threshold.value)}.${selected} ${counted(items.length, "recent input")} below it.`;
}

// The threshold ----------------------------------------------------------------------------------

/** Show where the threshold is and what it would change; cheap enough for every step of a drag. */
function showThreshold() {
  const { guard, draft } = state;
  const x = across(draft);
  const kept = keptShare(guard, draft);
  const handle = byId("handle");
  handle.style.left = `${x}px`;
  handle.dataset.value = number(draft);
  handle.setAttribute("aria-valuemin", scale.low);
  handle.setAttribute("aria-valuemax", scale.high);
  handle.setAttribute("aria-valuenow", draft);
  handle.setAttribute("aria-valuetext", kept === null ? number(draft) : `${number(draft)}, keeps ${percent(kept)} of ID inputs`);
  byId("rejected-side").setAttribute("width", Math.max(0, x - PLOT.side));
  byId("rejected-label").setAttribute("x", x - 9);
  byId("accepted-label").setAttribute("x", x + 9);
  byId("rejected-label").classList.toggle("out", x < 90);
  byId("accepted-label").classList.toggle("out", scale.width - x < 90);
  const own = byId("own-threshold");
  own.classList.toggle("out", !isMoved());
  own.setAttribute("x1", across(guard.threshold.value));
  own.setAttribute("x2", across(guard.threshold.value));
  if (document.activeElement !== byId("value")) byId("value").value = number(draft, 6);
  for (const item of scoredItems()) item.line?.setAttribute("class", `input ${wouldAccept(item) ? "id" : "ood"}`);
  showEffects(kept);
}

function showEffects(kept) {
  const items = scoredItems();
  const flagged = items.filter((item) => !wouldAccept(item)).length;
  const changed = items.filter(wouldChange);
  const accepted = changed.filter(wouldAccept).length;
  const before = isMoved() ? `now ${percent(keptShare(state.guard, state.guard.threshold.value))}` : "";
  const change = changed.length ? `${whole(accepted)} accepted, ${whole(changed.length - accepted)} rejected` : "";
  byId("effects").replaceChildren(
    fact("ID inputs kept", kept === null ? "not known" : percent(kept), kept === null ? "no calibration scores" : before),
    fact("Recent inputs flagged", items.length ? `${whole(flagged)} of ${whole(items.length)}` : "none yet", items.length ? percent(flagged / items.length) : ""),
    fact("Decisions changed", isMoved() ? counted(changed.length, "input") : "\u2013", change),
  );
  byId("reset").disabled = !isMoved();
  byId("save").disabled = !isMoved() || !state.canSave;
}

/** Try another threshold; everything that depends on it follows. */
function tryThreshold(value) {
  if (!Number.isFinite(value)) return;
  state.draft = value;
  byId("saved").textContent = state.canSave ? "" : UNSAVED;
  if (value === clamped(value)) showThreshold();
  else drawScores();
  showVerdict();
  markRecent();
}

const UNSAVED = "You can try a threshold here, but not save it: this service was started without a token for changes.";

async function save() {
  const said = byId("saved");
  said.textContent = "Saving\u2026";
  try {
    const guard = await saveThreshold(state.guard.name, state.draft);
    replaceGuard(guard);
    state.draft = state.guard.threshold.value;
    said.textContent = `Saved: the threshold is ${number(guard.threshold.value, 6)} from now on.`;
    showEverything();
  } catch (error) {
    said.textContent = `Not saved: ${error.message}`;
  }
}

// Mouse, touch and keyboard ----------------------------------------------------------------------

function prepareThreshold() {
  const handle = byId("handle");
  const plot = handle.parentElement;
  const follow = (event) => tryThreshold(clamped(scoreAt(event.clientX - plot.getBoundingClientRect().left)));
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    handle.focus();
    event.preventDefault();
  });
  handle.addEventListener("pointermove", (event) => handle.hasPointerCapture(event.pointerId) && follow(event));
  byId("histogram").addEventListener("click", follow);
  handle.addEventListener("keydown", (event) => {
    const step = (scale.high - scale.low) / (event.shiftKey ? 2000 : 200);
    const moves = { ArrowLeft: -step, ArrowDown: -step, ArrowRight: step, ArrowUp: step, PageDown: -10 * step, PageUp: 10 * step };
    const target = { Home: scale.low, End: scale.high }[event.key] ?? (event.key in moves ? state.draft + moves[event.key] : null);
    if (target === null || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    tryThreshold(clamped(target));
  });
  byId("value").addEventListener("change", (event) => tryThreshold(Number(event.target.value.trim().replace(MINUS, "-") || NaN)));
  byId("value").addEventListener("blur", (event) => (event.target.value = number(state.draft, 6)));
  byId("reset").addEventListener("click", () => tryThreshold(state.guard.threshold.value));
  byId("save").addEventListener("click", save);
  drawAtWidth(byId("histogram"), drawScores);
}

/** Buttons for the thresholds that keep a usual share of ID inputs. */
function offerRates() {
  const buttons = !state.guard.calibration ? [] : RATES.map((rate) => {
    const button = make("button", { type: "button", className: "quiet" }, `keep ${percent(rate)}`);
    button.addEventListener("click", () => tryThreshold(thresholdKeeping(state.guard, rate)));
    return button;
  });
  byId("rates").hidden = !buttons.length;
  byId("rates").replaceChildren(...buttons);
}
