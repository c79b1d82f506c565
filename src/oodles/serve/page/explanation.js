// Why an input was accepted or rejected: the members of an ensemble, and what the predicted class consists of.
"use strict";

const REDUCTIONS = { mean: "the mean rank", min: "the logarithm of the lowest rank", fisher: "the mean logarithm of the ranks" };

/** Elements that show an explanation as the service gives it; none if a detector has no breakdown. */
function explained(explanation) {
  const { findings, class_name: name, label } = explanation;
  const predicted = name ?? (label === null ? "the predicted class" : `class ${label}`);
  const parts = explanation.reduction === null ? [] : members(explanation);
  for (const finding of findings) {
    const alone = findings.length === 1;
    if (finding.contributions) parts.push(...contributions(finding, predicted, alone));
    if (finding.neighbours.length) parts.push(neighbours(finding));
  }
  return parts;
}

// Members of an ensemble -------------------------------------------------------------------------

function members({ findings, reduction }) {
  const intro = `The score is ${REDUCTIONS[reduction] ?? reduction} of these detectors, each read from a normal curve fitted to held-out ID scores. Lowest p-value first. A p-value is the share of those scores that are at most as high: near 0 is unusual, and a typical ID input has about 0.5.`;
  const order = [...findings].sort((one, other) => (one.p_value ?? 1) - (other.p_value ?? 1)); // as shown; else the service's
  const rows = order.map((finding) => {
    const below = finding.score !== null && finding.id_lowest !== null && finding.score < finding.id_lowest;
    const meter = make("span", { className: "bar", "aria-hidden": "true" }, make("span", { className: finding.p_value < 0.05 ? "low" : "" }));
    meter.firstChild.style.width = `${Math.max(1, 100 * (finding.p_value ?? 0))}%`;
    const value = finding.p_value === null ? "not known" : `${below ? "<" : "="} ${finding.p_value.toFixed(2)}`;
    const scores = `score ${number(finding.score, 3)}; ID: lowest ${number(finding.id_lowest, 3)}, median ${number(finding.id_median, 3)}`;
    return make("li", {},
      make("span", { className: "spec" }, ...breakable(finding.spec)), make("span", { className: "p" }, `p ${value}`), meter, make("span", { className: "muted small scores" }, scores));
  });
  return [make("p", {}, intro), make("ul", { className: "members" }, ...rows)];
}

/** A detector as text that may be broken between its stages. */
const breakable = (spec) => spec.split(/(?<=\+)/).flatMap((stage) => [stage, make("wbr")]);

function neighbours(finding) {
  const items = finding.neighbours.map((each) => {
    const row = each.train_row === null ? `kept row ${each.index}` : `row ${each.train_row}`;
    const name = each.class_name ?? (each.label === null ? null : `class ${each.label}`);
    return make("li", {}, `${number(each.similarity, 3)} (${name === null ? "" : `${name}, `}${row})`);
  });
  return make("div", {}, make("h3", {}, ...breakable(finding.spec), ": nearest training rows, by similarity"), make("ul", {}, ...items));
}

// Contributions to the predicted class -----------------------------------------------------------

function contributions({ spec, contributions: parts }, predicted, alone) {
  const figure = make("figure", {}, make("div", { className: "contributions" }), make("figcaption", {}, contributionWords(parts, predicted)));
  const chart = figure.firstChild;
  const totals = [["kept weights", parts.kept, "kept"], ["bias", parts.bias, "bias"], ["scored logit", parts.logit, "logit"], ["dropped weights", parts.dropped, "dropped"]];
  drawAtWidth(chart, (width) => chart.replaceChildren(signedBars(totals, width, `${predicted}: ${totals.map(([name, value]) => `${name} ${number(value, 3)}`).join(", ")}`)));
  const units = [["largest_kept", "Largest kept contributions", "kept"], ["largest_dropped", "Largest dropped contributions", "dropped"], ["least_usual", "Least usual contributions", "kept"]]
    .filter(([group]) => parts[group]?.length)
    .map(([group, title, kind]) => unitList(parts[group], title, kind));
  return [make("h3", {}, ...(alone ? ["What"] : [...breakable(spec), ": what"]), ` adds up to the logit of ${predicted}`), figure, make("div", { className: "unit-lists" }, ...units)];
}

function contributionWords(parts, predicted) {
  const times = parts.factor === 1 ? "" : ` Each includes the factor ${number(parts.factor, 3)} of the logits.`;
  const usual = parts.usual ? ` On average over training rows predicted as ${predicted}: kept ${number(parts.usual.kept, 3)}, dropped ${number(parts.usual.dropped, 3)}.` : "";
  return `Kept weights add ${number(parts.kept, 3)} and the bias ${number(parts.bias, 3)}, so the score sees a logit of ${number(parts.logit, 3)}. ` +
    `The dropped weights would have added ${number(parts.dropped, 3)}, for a logit of ${number(parts.dense_logit, 3)} with all weights.${times}${usual}`;
}

function unitList(units, title, kind) {
  const largest = Math.max(...units.map((unit) => Math.abs(unit.contribution)));
  const rows = units.map((unit) => {
    const bar = make("span", { className: "bar", "aria-hidden": "true" }, make("span", { className: kind }));
    bar.firstChild.style.width = `${(100 * Math.abs(unit.contribution)) / largest}%`;
    const usual = unit.usual === null ? "" : ` (usually ${number(unit.usual, 2)})`;
    return make("li", {}, make("span", {}, `unit ${unit.unit}`), bar, make("span", { className: "number" }, `${unit.contribution > 0 ? "+" : ""}${number(unit.contribution, 2)}${usual}`));
  });
  return make("div", {}, make("h4", {}, title), make("ul", { className: "units" }, ...rows));
}

/** Bars to both sides of zero, one per [name, value, class]. */
function signedBars(rows, width, alternative) {
  const [line, names] = [30, Math.min(150, 0.42 * width)];
  const height = rows.length * line + 6;
  const low = Math.min(0, ...rows.map(([, value]) => value));
  const high = Math.max(0, ...rows.map(([, value]) => value));
  const numbers = 68; // pixels of a number beside its bar
  const place = (value) => names + (low < 0 ? numbers : 8) + ((value - low) / (high - low || 1)) * (width - names - numbers - (low < 0 ? numbers : 8));
  const chart = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": alternative });
  rows.forEach(([name, value, kind], index) => {
    const top = 4 + index * line;
    const end = place(value);
    chart.append(
      makeSvg("text", { x: names - 6, y: top + 16, "text-anchor": "end" }, name),
      makeSvg("rect", { x: Math.min(end, place(0)), y: top + 2, width: Math.max(1, Math.abs(end - place(0))), height: line - 10, class: kind }),
      makeSvg("text", { x: end + (value < 0 ? -5 : 5), y: top + 16, "text-anchor": value < 0 ? "end" : "start" }, `${value > 0 ? "+" : ""}${number(value, 3)}`),
    );
  });
  chart.append(makeSvg("line", { x1: place(0), x2: place(0), y1: 2, y2: height - 2, class: "axis" }));
  return chart;
}
