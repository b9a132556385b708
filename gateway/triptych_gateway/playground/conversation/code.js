// A block of code: its language, a button to copy it, its text with colours.

import { button, h } from "../dom.js";
import hljs from "../vendor/highlight.js";
import { fragmentOf } from "./html.js";

/** Longer code has no colours, because it is coloured again with each token. In characters. */
const MAX_COLOURED = 30_000;

/** The nodes of a block. `language` may be empty. */
export function codeBlock(language, text) {
  const name = language || "text";
  const copy = button("Copy", null, { class: "quiet copy", "data-copy": text, "aria-label": `Copy the code, ${name}` });
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-bar" }, h("span", {}, name), copy),
    h("pre", { tabindex: 0, role: "region", "aria-label": `Code, ${name}` }, h("code", {}, coloured(language, text))),
  );
}

function coloured(language, text) {
  if (text.length > MAX_COLOURED || !hljs.getLanguage(language)) return text;
  return fragmentOf(hljs.highlight(text, { language, ignoreIllegals: true }).value);
}
