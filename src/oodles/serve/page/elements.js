// Elements, texts and numbers: what every other script here uses. Text from files or the service becomes text nodes only.
"use strict";

const byId = (id) => document.getElementById(id);

/** An element with properties (or attributes, if the name has a dash or is not a property) and children. */
function make(tag, properties = {}, ...children) {
  return furnish(document.createElement(tag), properties, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function furnish(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name in element && !name.includes("-") && !(element instanceof SVGElement)) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A name and a value of a description list; the value may be text or an element. */
function fact(name, value, note = null) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value), note === null ? null : make("dd", { className: "note" }, note));
}

/** A table with row headings; `columns` are titles, `rows` arrays whose first entry is the heading. */
function table(caption, columns, rows) {
  const heading = (scope) => (text) => make("th", { scope }, text);
  const row = ([first, ...rest]) =>
    make("tr", {}, heading("row")(first), ...rest.map((text) => make("td", { className: "number" }, text)));
  const titles = columns.map((title, index) => make("th", { scope: "col", className: index ? "number" : "" }, title));
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...titles)), make("tbody", {}, ...rows.map(row))));
}

// Numbers ----------------------------------------------------------------------------------------

const MINUS = "\u2212";
const SPACE = "\u00a0";

/** A number with so many significant digits, without an exponent where one can do without. */
function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "\u2013";
  const size = Math.abs(value);
  const text = size !== 0 && (size >= 1e6 || size < 1e-4) ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  return text.replace("-", MINUS);
}

/** Two numbers with as many digits as it takes to see which is larger. */
function apart(one, other) {
  let digits = 4;
  while (digits < 16 && one !== other && number(one, digits) === number(other, digits)) digits += 1;
  return [number(one, digits), number(other, digits)];
}

const whole = (count) => count.toLocaleString("en");
const counted = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

/** A share as a percentage that never rounds to "all" or "none" unless it is. */
function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return "\u2013";
  const value = 100 * share;
  if (value > 0 && value < 0.1) return `under 0.1${SPACE}%`;
  if (value < 100 && value > 99.9) return `over 99.9${SPACE}%`;
  return `${Number(value.toFixed(1))}${SPACE}%`;
}

function bytes(size) {
  return size < 1e6 ? `${number(size / 1e3, 3)}${SPACE}KB` : `${number(size / 1e6, 3)}${SPACE}MB`;
}

// Charts -----------------------------------------------------------------------------------------

/** Round numbers from `low` to `high`, about `wanted` of them. */
function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5].find((each) => each * power >= rough) ?? 10);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + 1e-9 * step; index += 1) found.push(index * step);
  return found;
}

/** Draw again whenever the width of an element changes; `draw` is given the width. */
function drawAtWidth(element, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (element.clientWidth && element.clientWidth !== width) draw((width = element.clientWidth));
  }).observe(element);
}

/** Tell users of screen readers what has just happened. */
function announce(text) {
  byId("announcement").textContent = text;
}
