// Markdown into nodes. What a model writes is only ever text: there is no HTML, and pictures are shown as links.

import { button, h, removeFrom } from "./dom.js";

/** Show Markdown in an element. Blocks that did not change since the last call keep their nodes. */
export function showMarkdown(element, source) {
  const blocks = blocksOf(source.split("\n"));
  let old = element.firstElementChild;
  for (const block of blocks) {
    const next = old?.nextElementSibling;
    const text = block.lines.join("\n");
    if (old?.source !== text || old.kind !== block.kind) {
      const node = RENDERERS[block.kind](block);
      Object.assign(node, { source: text, kind: block.kind });
      if (old) old.replaceWith(node);
      else element.append(node);
    }
    old = next;
  }
  removeFrom(old);
}

// No two neighbours match the same characters: models repeat themselves, and then each way to share out a run would be tried.
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s(.*)$/;
const HEADING_END = /(?<=^|\s)#+$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const TABLE = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/;

/** The blocks of a text: { kind, lines }, in their order. Blank lines between them are dropped. */
function blocksOf(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const kind = kindOf(lines, at);
    const end = endOf(kind, lines, at);
    blocks.push({ kind, lines: lines.slice(at, end) });
    at = end;
  }
  return blocks;
}

function kindOf(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return "code";
  if (HEADING.test(line)) return "heading";
  if (RULE.test(line)) return "rule";
  if (QUOTE.test(line)) return "quote";
  if (ITEM.test(line)) return "list";
  return line.includes("|") && TABLE.test((lines[at + 1] ?? "").trim()) ? "table" : "paragraph";
}

/** The index after the last line of the block that starts at `at`. */
function endOf(kind, lines, at) {
  const until = (isEnd) => {
    let end = at + 1;
    while (end < lines.length && !isEnd(lines[end], end)) end += 1;
    return end;
  };
  if (kind === "heading" || kind === "rule") return at + 1;
  if (kind === "code") {
    const fence = FENCE.exec(lines[at])[1];
    const closing = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}\\s*$`);
    return Math.min(until((line) => closing.test(line)) + 1, lines.length);
  }
  if (kind === "list") {
    const isOrdered = /\d/.test(ITEM.exec(lines[at])[2]);
    return until((line, index) => {
      if (line.trim() === "") return !isListLine(lines[index + 1] ?? "", isOrdered);
      return !isListLine(line, isOrdered) && (kindOf(lines, index) !== "paragraph" || lines[index - 1].trim() === "");
    });
  }
  if (kind === "quote" || kind === "table") return until((line) => line.trim() === "");
  return until((line, index) => line.trim() === "" || kindOf(lines, index) !== "paragraph");
}

function isListLine(line, isOrdered) {
  if (/^ {2,}\S/.test(line)) return true;
  const item = ITEM.exec(line);
  return item !== null && /\d/.test(item[2]) === isOrdered;
}

const RENDERERS = {
  paragraph: ({ lines }) => h("p", {}, inline(lines.map((line) => line.trimStart()).join("\n"))),
  rule: () => h("hr"),
  heading: ({ lines }) => {
    const [, marks, text] = HEADING.exec(lines[0]);
    // The page has a heading of its own above.
    return h(`h${Math.min(marks.length + 2, 6)}`, {}, inline(text.trim().replace(HEADING_END, "").trim()));
  },
  quote: ({ lines }) => h("blockquote", {}, nested(lines.map((line) => line.replace(QUOTE, "")))),
  code: ({ lines }) => {
    const [, fence, language] = FENCE.exec(lines[0]);
    const isClosed = lines.length > 1 && lines.at(-1).trim().startsWith(fence);
    const text = lines.slice(1, isClosed ? -1 : undefined).join("\n");
    const copy = button("Copy", null, { class: "quiet copy", "data-copy": text });
    const bar = h("div", { class: "code-bar" }, h("span", {}, language.trim().split(/\s/)[0] || "text"), copy);
    return h("div", { class: "code" }, bar, h("pre", { tabindex: 0 }, h("code", {}, text)));
  },
  list: ({ lines }) => {
    const [, , mark] = ITEM.exec(lines[0]);
    const items = itemsOf(lines).map((item) => h("li", {}, tight(nested(item))));
    const start = Number.parseInt(mark, 10);
    return Number.isNaN(start) ? h("ul", {}, items) : h("ol", { start: start === 1 ? null : start }, items);
  },
  table: ({ lines }) => {
    const [head, , ...rows] = lines.map(cellsOf);
    const row = (tag, cells) => h("tr", {}, cells.map((cell) => h(tag, {}, inline(cell))));
    const table = h("table", {}, h("thead", {}, row("th", head)), h("tbody", {}, rows.map((cells) => row("td", cells))));
    return h("div", { class: "scroll", tabindex: 0 }, table);
  },
};

/** How many blocks are around the current one, and how many may be. Deeper ones are shown as their text. */
let depth = 0;
const MAX_DEPTH = 16;

function nested(lines) {
  if (depth === MAX_DEPTH) return [h("p", {}, lines.join("\n"))];
  depth += 1;
  try {
    return blocksOf(lines).map((block) => RENDERERS[block.kind](block));
  } finally {
    depth -= 1;
  }
}

/** Without the paragraph around the text of an item. */
function tight(nodes) {
  return nodes[0]?.tagName === "P" ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes;
}

/** The lines of each item, without its mark and its indentation. */
function itemsOf(lines) {
  const items = [];
  let indent = 0;
  const first = ITEM.exec(lines[0])[1].length;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= first + 1) {
      indent = item[0].length;
      items.push([line.slice(indent)]);
    } else {
      const own = /^ */.exec(line)[0].length;
      items.at(-1).push(line.slice(Math.min(indent, own)));
    }
  }
  return items;
}

function cellsOf(line) {
  const cells = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/);
  return cells.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// One alternative per kind of inline text, in the order of their precedence. Lengths are limited: without an end, each mark would
// be searched to the end of the text, and models repeat themselves.
const INLINE = new RegExp(
  [
    /(?<ticks>`{1,20})(?<code>[^`]|[^`][\s\S]{0,1000}?[^`])\k<ticks>(?!`)/,
    /\\(?<escaped>[\\`*_{}[\]()#+\-.!~|<>])/,
    /!?\[(?<label>[^\]\n]{0,1000})\]\((?<target>[^)\s]{1,2000})(?:\s+"[^"]{0,1000}")?\)/,
    /(?<address>https?:\/\/[^\s<>()[\]"'`]*[^\s<>()[\]"'`.,;:!?*_])/,
    /\*\*(?=\S)(?<strong>[\s\S]{0,1000}?\S)\*\*(?!\*)/,
    /(?<![\w_])__(?=\S)(?<strong2>[\s\S]{0,1000}?\S)__(?![\w_])/,
    /~~(?=\S)(?<struck>[\s\S]{0,1000}?\S)~~/,
    /\*(?=[^\s*])(?<em>[^*]{0,1000}?[^\s*])\*(?!\*)/,
    /(?<![\w_])_(?=[^\s_])(?<em2>[^_]{0,1000}?[^\s_])_(?![\w_])/,
    /(?<broken> {2,20}\n)/,
  ].map((part) => part.source).join("|"),
  "g",
);

/** The nodes of a text without blocks. */
function inline(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > at) nodes.push(text.slice(at, match.index));
    nodes.push(inlineNode(match.groups, match[0]));
    at = match.index + match[0].length;
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}

function inlineNode(found, whole) {
  if (found.code !== undefined) return h("code", {}, found.code.replace(/^ (.*) $/s, "$1"));
  if (found.escaped) return found.escaped;
  if (found.target) return link(found.target, inline(found.label || found.target), whole);
  if (found.address) return link(found.address, [found.address], whole);
  if (found.broken) return h("br");
  if (found.struck) return h("s", {}, inline(found.struck));
  const strong = found.strong ?? found.strong2;
  if (strong) return h("strong", {}, inline(strong));
  return h("em", {}, inline(found.em ?? found.em2));
}

/** A link, if its address is one that a browser may open without danger. */
function link(address, label, whole) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return whole;
  return h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, label);
}
