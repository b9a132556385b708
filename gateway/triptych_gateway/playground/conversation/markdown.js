// Markdown into nodes. HTML in it stays text, and pictures are shown as links, so that an answer makes the browser call nobody.

import { h, removeFrom } from "../dom.js";
import MarkdownIt from "../vendor/markdown-it.js";
import { codeBlock } from "./code.js";
import { fragmentOf } from "./html.js";

const markdown = new MarkdownIt({ linkify: true, breaks: true });
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
markdown.validateLink = (address) => /^(https?:\/\/|mailto:)/i.test(address);

const { escapeHtml } = markdown.utils;
const { rules } = markdown.renderer;
rules.image = (tokens, index) => {
  const address = escapeHtml(tokens[index].attrGet("src"));
  return `<a href="${address}">${escapeHtml(tokens[index].content) || address}</a>`;
};
// The page has two levels of headings above those of an answer.
rules.heading_open = (tokens, index) => `<h${levelOf(tokens[index])}>`;
rules.heading_close = (tokens, index) => `</h${levelOf(tokens[index])}>`;
// Not as a style, which the page's policy forbids.
rules.th_open = rules.td_open = (tokens, index) => {
  const side = /right|center/.exec(tokens[index].attrGet("style"))?.[0] ?? "left";
  return `<${tokens[index].tag} class="${side}">`;
};
rules.fence = (tokens, index) => {
  const [language] = tokens[index].info.trim().split(/\s/);
  return `<pre><code class="${escapeHtml(language)}">${escapeHtml(tokens[index].content)}</code></pre>`;
};

function levelOf({ tag }) {
  return Math.min(Number(tag[1]) + 2, 6);
}

/** The blocks of a text that stand beside each other, each as HTML that is not sanitised yet. */
export function blocksOf(source) {
  const env = {};
  const blocks = [];
  let block = [];
  let depth = 0;
  for (const token of markdown.parse(source, env)) {
    block.push(token);
    depth += token.nesting;
    if (depth > 0) continue;
    blocks.push(markdown.renderer.render(block, markdown.options, env));
    block = [];
  }
  return blocks;
}

/** Show Markdown in an element. Blocks that did not change since the last call keep their nodes. */
export function showMarkdown(element, source) {
  let old = element.firstElementChild;
  for (const html of blocksOf(source)) {
    const next = old?.nextElementSibling;
    if (old?.html !== html) {
      const node = nodeOf(html);
      node.html = html;
      if (old) old.replaceWith(node);
      else element.append(node);
    }
    old = next;
  }
  removeFrom(old);
}

function nodeOf(html) {
  const nodes = fragmentOf(html);
  for (const link of nodes.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
  for (const pre of nodes.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    pre.replaceWith(codeBlock(code?.className ?? "", pre.textContent.replace(/\n$/, "")));
  }
  for (const table of nodes.querySelectorAll("table")) {
    const frame = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  return nodes.firstElementChild ?? h("p");
}
