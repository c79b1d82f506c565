// Recent inputs, sorted by score; each is a button that shows its verdict.
"use strict";

function showRecent() {
  const items = ownItems().filter((item) => item.result || item.problem);
  byId("recent-section").hidden = !items.length;
  items.sort((one, other) => sortKey(one) - sortKey(other));
  const scored = items.filter(isScored).length;
  const rest = items.length - scored;
  const shown = byId("only-rejected").checked ? items.filter((item) => isScored(item) && !wouldAccept(item)) : items;
  byId("recent-note").textContent = `${shown.length < items.length ? `${whole(shown.length)} of ` : ""}${counted(items.length, "input")}, least like the training data first` +
    `${rest ? `; ${whole(rest)} could not be scored and ${rest === 1 ? "is" : "are"} last` : ""}. This page keeps the last ${MAX_ITEMS}.`;
  const focused = document.activeElement;
  byId("recent").replaceChildren(...shown.map(card));
  if (focused?.isConnected && byId("recent").contains(focused)) focused.focus({ preventScroll: true });
  markRecent();
}

const sortKey = (item) => (isScored(item) ? item.result.score : Infinity);

function card(item) {
  if (item.card) return item.card;
  item.card = make("li", {}, make("button", { type: "button", className: "card" }, picture(item), make("span", { className: "name", title: item.name }, item.name), make("span", { className: "tag" }), make("span", { className: "small muted detail" })));
  item.card.firstChild.addEventListener("click", () => select(item));
  return item.card;
}

/** The thumbnail of an input, or what takes its place. */
function picture(item) {
  if (!item.thumbnail) return make("span", { className: "missing" }, item.file ? "no preview" : "no picture");
  return make("img", { src: item.thumbnail.url, alt: "", className: item.thumbnail.tiny ? "tiny" : "" });
}

/** The words of all cards, and which one is shown. */
function markRecent() {
  for (const item of ownItems()) {
    if (!item.card) continue;
    const button = item.card.firstChild;
    const kind = !isScored(item) ? "failed" : wouldAccept(item) ? "id" : "ood";
    const changes = isScored(item) && wouldChange(item);
    button.setAttribute("aria-pressed", item === state.selected);
    button.className = `card ${kind}${changes ? " changes" : ""}`;
    button.querySelector(".tag").textContent = { failed: "not scored", id: changes ? "would be accepted" : "accepted", ood: changes ? "would be rejected" : "rejected" }[kind];
    button.querySelector(".detail").textContent = isScored(item) ? `${number(item.result.score)} \u00b7 ${className(item.result)}` : problemOf(item);
  }
}

/** The thumbnail has become known after the card was made. */
function updatePicture(item) {
  item.card?.querySelector("img, .missing").replaceWith(picture(item));
  if (item === state.selected) showVerdict();
}

function select(item) {
  state.selected = item;
  showVerdict();
  showWhy();
  drawScores();
  markRecent();
  announce(verdictWords(item));
  openCheck();
  byId("verdict-section").scrollIntoView({ block: "nearest" });
}
