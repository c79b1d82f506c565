// What the page knows: the guards of the service, recent inputs (in memory only) and the threshold that is being tried.
"use strict";

const MAX_ITEMS = 200;

const state = {
  guards: [],
  limits: null,
  canSave: false,
  guard: null, // the one that is shown
  draft: null, // the threshold that is being tried; equal to the guard's own unless it was moved
  items: [], // oldest first: { guard, name, file, thumbnail, result, problem }, of all guards
  selected: null,
};

/** The recent inputs of the guard that is shown. */
const ownItems = () => state.items.filter((item) => item.guard === state.guard.name);

const isScored = (item) => Number.isFinite(item.result?.score);

const scoredItems = () => ownItems().filter(isScored);

const isMoved = () => state.draft !== state.guard.threshold.value;

/** Whether a scored input would be accepted with the threshold that is being tried. */
const wouldAccept = (item) => (isMoved() ? item.result.score >= state.draft : item.result.is_id);

const wouldChange = (item) => wouldAccept(item) !== item.result.is_id;

function addItem(item) {
  state.items.push(item);
  while (state.items.length > MAX_ITEMS) forget(state.items.shift());
}

function forget(item) {
  if (item.thumbnail) URL.revokeObjectURL(item.thumbnail.url);
  item.forgotten = true;
  if (state.selected === item) state.selected = null;
}

function clearItems() {
  ownItems().forEach(forget);
  state.items = state.items.filter((item) => !item.forgotten);
}

/** Take over a guard's record after its threshold has changed; what was scored before is decided again. */
function replaceGuard(guard) {
  state.guards = state.guards.map((each) => (each.name === guard.name ? guard : each));
  for (const item of state.items) {
    if (item.guard === guard.name && isScored(item)) item.result.is_id = item.result.score >= guard.threshold.value;
  }
  if (state.guard.name !== guard.name) return;
  if (!isMoved()) state.draft = guard.threshold.value;
  state.guard = guard;
}
