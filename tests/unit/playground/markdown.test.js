// Markdown of models that repeat themselves: nothing is lost, nothing is nested without end, nothing takes long.

import assert from "node:assert/strict";
import { test } from "node:test";
import { blocksOf } from "./conversation/markdown.js";

const SIGNS = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"' };
const textOf = (html) => html.replace(/<[^>]*>/g, "").replace(/&(lt|gt|amp|quot);/g, (name) => SIGNS[name]);

for (const mark of ["**a ", "[a ", "![", "~~a ", "__a ", "_a ", "*a ", "a|b ", "<b>", "<!--", "[a]("]) {
  test(`${mark} without an end stays text`, () => {
    const source = mark.repeat(2000);
    assert.equal(textOf(blocksOf(source).join("")).trim(), source.trim());
  });
}

for (const [name, source] of Object.entries({ quotes: "> ".repeat(5000), lists: "- ".repeat(5000) })) {
  test(`${name} are nested to a limit`, () => {
    const [html] = blocksOf(source);
    assert.ok(html.split(/<(?:blockquote|ul)>/).length < 110);
  });
}

for (const [name, source] of Object.entries({
  items: "- a\n".repeat(5000),
  spaces: `a${" ".repeat(100_000)}b`,
  "spaces of a heading": `# a${" ".repeat(100_000)}b`,
  "number signs": `# ${"#".repeat(100_000)} a`,
  backticks: `a ${"`".repeat(100_000)}`,
  brackets: "[".repeat(20_000),
  "emphasis that crosses": "*a_ ".repeat(5000),
  "spaces of a fence": `\`\`\`${" ".repeat(100_000)}\``,
  "spaces below a table's head": `a|b\n|${" ".repeat(100_000)}x`,
})) {
  test(`long runs of ${name} do not take long`, () => {
    const start = performance.now();
    blocksOf(source);
    assert.ok(performance.now() - start < 1500, `${performance.now() - start} ms`);
  });
}

test("a block that grows leaves those before it as they are", () => {
  const [first] = blocksOf("One\n\n```py\nx");
  assert.deepEqual(blocksOf("One\n\n```py\nx = 1\n```\n\nTwo").slice(0, 1), [first]);
});

test("HTML, pictures and foreign schemes", () => {
  const html = blocksOf("![a](https://example.com/a.png) [b](javascript:alert(1)) <img src=x> [c](data:text/html,x)").join("");
  assert.deepEqual(html.match(/<\w+/g), ["<p", "<a"]);
});
