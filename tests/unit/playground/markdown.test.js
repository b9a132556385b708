// Markdown of models that repeat themselves: nothing is lost, nothing is nested without end.

import assert from "node:assert/strict";
import { test } from "node:test";

/** As much of an element as the module needs. */
class FakeElement {
  children = [];
  constructor(tag) { this.tagName = tag.toUpperCase(); }
  get childNodes() { return this.children; }
  get text() { return this.children.map((child) => child.text ?? child).join(""); }
  setAttribute() {}
  append(...nodes) { this.children.push(...nodes); }
  replaceWith() {}
}
globalThis.document = { createElement: (tag) => new FakeElement(tag) };
const { showMarkdown } = await import("./markdown.js");

function shown(source) {
  const element = new FakeElement("div");
  showMarkdown(element, source);
  return element;
}

function depthOf(element) {
  return element.children ? 1 + Math.max(0, ...element.children.map(depthOf)) : 0;
}

for (const mark of ["**a ", "[a ", "![", "~~a ", "__a ", "_a ", "*a ", "a|b ", "<b>"]) {
  test(`${mark} without an end stays text`, () => {
    const source = mark.repeat(2000);
    assert.equal(shown(source).text.trim(), source.trim());
  });
}

for (const [name, source] of Object.entries({ quotes: "> ".repeat(5000), lists: "- ".repeat(5000), items: "- a\n".repeat(5000) })) {
  test(`${name} are nested to a limit`, () => assert.ok(depthOf(shown(source)) < 60));
}

for (const [name, source] of Object.entries({
  spaces: `a${" ".repeat(100_000)}b`,
  "spaces of a heading": `# a${" ".repeat(100_000)}b`,
  "number signs": `# ${"#".repeat(100_000)} a`,
  backticks: `a ${"`".repeat(100_000)}`,
  "spaces of a fence": `\`\`\`${" ".repeat(100_000)}\``,
  "spaces below a table's head": `a|b\n|${" ".repeat(100_000)}x`,
})) {
  test(`long runs of ${name} do not take long`, () => {
    const start = performance.now();
    shown(source);
    assert.ok(performance.now() - start < 1500, `${performance.now() - start} ms`);
  });
}

test("pictures and foreign schemes are not loaded", () => {
  const tags = [];
  document.createElement = (tag) => { tags.push(tag); return new FakeElement(tag); };
  shown("![a](https://example.com/a.png) [b](javascript:alert(1)) <img src=x> [c](data:text/html,x)");
  assert.deepEqual(tags.filter((tag) => !["p", "a"].includes(tag)), []);
  assert.equal(tags.filter((tag) => tag === "a").length, 1);
});
