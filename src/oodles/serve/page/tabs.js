// Three views of a guard, as tabs: arrow keys move between them, and the address remembers which one is open.
"use strict";

const tabs = [...document.querySelectorAll("[role=tab]")];
const panel = (tab) => byId(tab.getAttribute("aria-controls"));

function openTab(tab) {
  for (const each of tabs) {
    each.setAttribute("aria-selected", each === tab);
    each.tabIndex = each === tab ? 0 : -1;
    panel(each).hidden = each !== tab;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
}

/** Show results of a drop or a paste, wherever it happened. */
const openCheck = () => openTab(tabs[0]);

function prepareTabs() {
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => openTab(tab));
    tab.addEventListener("keydown", (event) => {
      const next = { ArrowRight: tabs[index + 1] ?? tabs[0], ArrowLeft: tabs.at(index - 1), Home: tabs[0], End: tabs.at(-1) }[event.key];
      if (!next) return;
      event.preventDefault();
      openTab(next);
      next.focus();
    });
  });
  openTab(tabs.find((tab) => location.hash === `#${tab.getAttribute("aria-controls")}`) ?? tabs[0]);
}
