// The page as a whole: loads the guards, shows the one that is chosen, and connects the parts.
"use strict";

async function loadGuards() {
  try {
    const answer = await ask("guards", { onWait: () => showProblem("The service is not ready yet; waiting for it.") });
    showProblem("");
    Object.assign(state, { guards: answer.guards, limits: answer.limits, canSave: answer.can_save });
    if (!answer.guards.length) return showProblem("This service has no guards.");
    const same = answer.guards.find((guard) => guard.name === state.guard?.name);
    if (same) answer.guards.forEach(replaceGuard);
    else showGuard(answer.guards[0]);
    listGuards();
    showEverything();
  } catch (error) {
    offerAgain(error.message);
  }
}

function listGuards() {
  const names = state.guards.map(({ name }) => make("option", { value: name, selected: name === state.guard.name }, name));
  byId("guard").replaceChildren(...names);
  byId("choice").hidden = names.length < 2;
}

function showGuard(guard) {
  const images = guard.takes === "images";
  Object.assign(state, { guard, draft: guard.threshold.value });
  state.selected = ownItems().filter(isScored).at(-1) ?? null;
  document.querySelector("main").hidden = false;
  byId("pictures").hidden = !images;
  byId("written").hidden = images;
  byId("intake-title").textContent = images ? "Check pictures" : "Check inputs";
  byId("about").textContent = aboutGuard(guard);
  byId("files-note").textContent = limitWords(state.limits);
  byId("rows-label").textContent = guard.texts ? "Texts, one per line" : "Inputs as JSON, one entry per row";
  byId("rows").value = images || guard.texts ? "" : exampleRows(guard.inputs);
  byId("rows-note").textContent = guard.texts ? "" : `The guard takes ${guard.inputs.map(inputWords).join("; ")}.`;
  byId("scores-caption").textContent = guard.calibration
    ? `Bars: scores of ${counted(guard.threshold.calibration_size, "calibration input")}, which are in-distribution (ID). Short lines below: recent inputs.`
    : "This guard has no scores of its calibration set, so there is no histogram. Short lines: recent inputs.";
  byId("saved").textContent = state.canSave ? "" : UNSAVED;
  byId("save").hidden = !state.canSave;
  byId("windows-tables").replaceChildren();
  byId("monitor-facts").replaceChildren(); // those of another guard, until its own are known
  offerRates();
  watch();
}

function aboutGuard({ detector, class_names: names, members, reload_error: stale }) {
  const classes = names.length > 12 ? `${names.slice(0, 8).join(", ")} and ${whole(names.length - 8)} more` : names.join(", ");
  const parts = names.length ? [`The model knows ${counted(names.length, "class", "classes")}: ${classes}.`] : [];
  parts.push(`Detector: ${detector}${members.length ? `, an ensemble of ${counted(members.length, "method")}` : ""}.`);
  if (stale) parts.push(`A newer version of this guard could not be loaded, so the previous one answers: ${stale}`);
  return parts.join(" ");
}

function limitWords({ formats, body_bytes: size, pixels }) {
  const names = formats.length > 1 ? `${formats.slice(0, -1).join(", ")} or ${formats.at(-1)}` : formats.join();
  return `${names}; each at most ${bytes(size)} and ${number(pixels / 1e6, 3)} megapixels`;
}

function showEverything() {
  if (!state.guard) return;
  drawScores();
  showVerdict();
  showWhy();
  showRecent();
  showSending("");
}

let frame = null; // many results may arrive within one frame

function showSoon() {
  frame ??= requestAnimationFrame(() => {
    frame = null;
    showEverything();
  });
}

function showProblem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

function offerAgain(text) {
  const button = make("button", { type: "button" }, "Try again");
  button.addEventListener("click", loadGuards);
  byId("problem").replaceChildren(`${sentence(text)} `, button);
  byId("problem").hidden = false;
}

byId("guard").addEventListener("change", (event) => {
  showGuard(state.guards.find((guard) => guard.name === event.target.value));
  showEverything();
});
byId("clear").addEventListener("click", () => {
  clearItems();
  showEverything();
  announce("Recent inputs cleared.");
  byId(state.guard.takes === "images" ? "files" : "rows").focus();
});
byId("only-rejected").addEventListener("change", showRecent);
byId("windows").addEventListener("toggle", () => monitor.record && showTables());
prepareIntake();
prepareThreshold();
prepareMonitor();
prepareTabs();
loadGuards();
