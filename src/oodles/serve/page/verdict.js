// The verdict on the input that is selected, in words.
"use strict";

const className = (result) => result.class_name ?? (result.label === null ? "no class" : `class ${result.label}`);

/** What went wrong, without the name of the input, which is shown beside it. */
function problemOf(item) {
  const text = item.problem ?? item.result?.error?.message ?? "its score is not a finite number";
  return text.startsWith(`${item.name}: `) ? text.slice(item.name.length + 2) : text;
}

const headline = (item) => (item.result.is_id ? `Accepted: looks like ${className(item.result)}` : "Rejected: unlike the training data");

/** One line for the live region. */
function verdictWords(item) {
  if (!item.result && !item.problem) return `${item.name} is being scored.`;
  if (!isScored(item)) return `${item.name} could not be scored: ${problemOf(item)}`;
  return `${item.name}: ${headline(item)}. Predicted: ${className(item.result)}, ${percent(item.result.probability)}.`;
}

function showVerdict() {
  const item = state.selected;
  const box = byId("verdict");
  if (!item || item.guard !== state.guard.name) {
    box.className = "";
    box.replaceChildren(make("p", { className: "muted" }, state.guard.takes === "images" ? "Choose a picture, or try a drawing." : "Score some inputs."));
    return;
  }
  const known = item.result || item.problem;
  const kind = !known ? "waiting" : !isScored(item) ? "failed" : item.result.is_id ? "id" : "ood";
  box.className = kind;
  const words = { waiting: ["Scoring\u2026"], failed: ["Not scored", problemOf(item)] }[kind] ?? [headline(item), reason(item)];
  const text = make("div", { className: "words" }, make("p", { className: "name", title: item.name }, item.name), words[1] ? make("p", {}, sentence(words[1])) : null);
  if (isScored(item)) text.append(...consequences(item));
  const rows = isScored(item) ? [make("dl", { className: "facts" }, ...verdictFacts(item))] : [];
  box.replaceChildren(make("p", { className: "headline" }, words[0]), make("div", { className: "shown" }, picture(item), text), ...rows);
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

function reason({ result }) {
  const { threshold } = state.guard;
  const [score, limit] = apart(result.score, threshold.value);
  const kept = keptShare(state.guard, threshold.value) ?? threshold.id_rate;
  return `The score ${score} is ${result.is_id ? "at least" : "below"} the threshold ${limit}, which keeps ${percent(kept)} of in-distribution inputs`;
}

function consequences(item) {
  const parts = [];
  const count = state.guard.class_names.length;
  if (!item.result.is_id) parts.push(make("p", { className: "muted" }, `Do not rely on the class: the classifier can only answer with one of its ${count ? `${whole(count)} classes` : "classes"}, whatever it is shown.`));
  if (isMoved()) {
    const verb = wouldChange(item) ? "would be" : "would still be";
    parts.push(make("p", { className: "trial" }, `With the threshold at ${number(state.draft)} it ${verb} ${wouldAccept(item) ? "accepted" : "rejected"}.`));
  }
  return parts;
}

function verdictFacts({ result }) {
  const score = make("data", { value: String(result.score) }, number(result.score));
  const share = result.p_value === null ? null : `${percent(result.p_value)} of ID inputs score at most as high`;
  return [
    fact("Predicted class", className(result), result.probability === null ? null : `probability ${percent(result.probability)}`),
    fact("Score", score, "larger is more like the training data"),
    ...(result.p_value === null ? [] : [fact("p-value", number(result.p_value, 2), share)]),
  ];
}

function showWhy() {
  const item = state.selected;
  const result = item?.guard === state.guard.name && isScored(item) ? item.result : null;
  const parts = result ? explained(result.explanation) : [];
  byId("why-section").hidden = !parts.length;
  byId("why").replaceChildren(...parts);
}
