// Building nodes. Text becomes text nodes; nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** A new element: h("a", { class: "link", href, onclick }, "text", child). Properties that are null or false are left out. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** A button that submits nothing. */
export function button(label, onclick, properties = {}) {
  return h("button", { type: "button", class: "quiet", onclick, ...properties }, label);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** The element with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Set text, unless it is the same, so that selections survive. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replace the children of an element by the nodes of `make()`, unless `key` is the same as the last time. */
export function renderOnce(element, key, make) {
  if (element.renderedKey === key) return;
  element.renderedKey = key;
  element.replaceChildren(...[make()].flat().filter(Boolean));
}

/** Remove a child and all that follow it. */
export function removeFrom(child) {
  while (child) {
    const next = child.nextElementSibling;
    child.remove();
    child = next;
  }
}

/** Milliseconds for people: 0.4 ms, 12 ms, 1.23 s. */
export function duration(ms) {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

/** A number with separators. */
export function count(number) {
  return number.toLocaleString("en");
}

/** Bytes for people. */
export function bytes(number) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  const step = number < 1 ? 0 : Math.min(Math.floor(Math.log(number) / Math.log(1024)), units.length - 1);
  const value = number / 1024 ** step;
  return `${value < 10 && step ? value.toFixed(1) : Math.round(value)} ${units[step]}`;
}
