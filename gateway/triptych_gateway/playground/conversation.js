// The messages. Each has its nodes for as long as it lives; only what changed is rendered again.

import { tokensPerSecond } from "./answer.js";
import { retry, sendResults } from "./chat.js";
import { preview } from "./composer.js";
import { button, byId, count, duration, h, removeFrom, renderOnce, setText } from "./dom.js";
import { showMarkdown } from "./markdown.js";
import { change, shownAnswer } from "./state.js";
import { showTokens } from "./tokens.js";

/** message -> its view */
const views = new WeakMap();

/** Show the conversation, scrolled to its end unless the reader scrolled up. */
export function renderConversation(state) {
  const log = byId("log");
  const list = byId("messages");
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  byId("welcome").hidden = state.messages.length > 0;
  const shown = shownAnswer(state);
  const last = state.messages.at(-1);
  let next = list.firstElementChild;
  for (const message of state.messages) {
    const view = viewOf(message);
    if (message.role === "assistant") update(view, message, message === last, message === shown);
    if (view.node === next) next = next.nextElementSibling;
    else list.insertBefore(view.node, next);
  }
  removeFrom(next);
  list.setAttribute("aria-busy", String(state.live !== null));
  if (follows) log.scrollTop = log.scrollHeight;
}

function viewOf(message) {
  if (!views.has(message)) views.set(message, message.role === "user" ? userView(message) : answerView(message));
  return views.get(message);
}

function userView({ text, media }) {
  const files = media.map((item) => h("li", { class: item.kind }, preview(item)));
  const node = h(
    "article",
    { class: "user", "aria-label": "You" },
    media.length > 0 && h("ul", { class: "media" }, files),
    text && h("p", {}, text),
  );
  return { node };
}

function answerView(message) {
  const part = (tag, name, properties = {}) => h(tag, { class: name, ...properties });
  const view = {
    thought: part("div", "thought"),
    text: part("div", "text markdown"),
    tokens: part("div", "text tokens", { role: "group", "aria-label": "Tokens. The arrow keys move between them." }),
    calls: part("div", "calls"),
    error: part("p", "error", { role: "alert" }),
    waiting: h("p", { class: "waiting", "aria-hidden": "true" }, h("span"), h("span"), h("span")),
    footer: part("footer", "facts"),
  };
  view.reasoning = h("details", { class: "reasoning", open: true }, h("summary", {}, "Reasoning"), view.thought);
  view.node = h(
    "article",
    { class: "assistant", "aria-label": "Answer" },
    view.reasoning, view.text, view.tokens, view.calls, view.waiting, view.error, view.footer,
  );
  view.node.message = message;
  return view;
}

function update(view, message, isLast, isShown) {
  const key = `${message.version} ${isLast} ${isShown} ${message.showTokens}`;
  if (view.key === key) return;
  view.key = key;
  const asTokens = message.tokens.length > 0 && message.showTokens;
  view.reasoning.hidden = message.reasoning === "";
  setText(view.thought, message.reasoning);
  view.text.hidden = asTokens || message.text === "";
  view.tokens.hidden = !asTokens;
  if (asTokens) showTokens(view.tokens, message.tokens);
  else showMarkdown(view.text, message.text);
  view.waiting.hidden = !message.live || message.firstAt !== null;
  view.error.hidden = message.error === null;
  setText(view.error, message.error ?? "");
  view.calls.hidden = message.calls.length === 0;
  renderCalls(view.calls, message, isLast && !message.live);
  view.footer.hidden = message.live;
  if (!message.live) renderOnce(view.footer, key, () => facts(message, isLast, isShown));
}

/** The calls of tools, and a field for the result of each where the model waits for it. */
function renderCalls(element, message, isOpen) {
  const key = `${message.calls.map((call) => call.name + call.arguments).join("\n")} ${isOpen}`;
  renderOnce(element, key, () => {
    const cards = message.calls.map((call) => callCard(call, isOpen));
    const all = button("Send results", sendResults, { class: "primary" });
    return [...cards, isOpen && message.calls.length > 0 && h("p", { class: "actions" }, all)];
  });
}

function callCard(call, isOpen) {
  const note = ({ target }) => { call.result = target.value; };
  const field = h("textarea", { rows: 2, "aria-label": `Result of ${call.name}`, placeholder: "The result of this call", oninput: note });
  field.value = call.result;
  field.readOnly = !isOpen;
  return h(
    "section",
    { class: "call" },
    h("p", {}, h("strong", {}, call.name), " ", h("span", { class: "muted" }, "tool call")),
    h("pre", { tabindex: 0 }, h("code", {}, pretty(call.arguments))),
    (isOpen || call.result) && field,
  );
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

const ENDS = { length: "cut at max tokens", stopped: "stopped" };

/** What the answer cost, and what can be done with it. */
function facts(message, isLast, isShown) {
  const { usage, sentAt, firstAt, endAt } = message;
  const speed = tokensPerSecond(message);
  const texts = [
    ENDS[message.finish],
    usage && `${count(usage.completion_tokens)} tokens`,
    speed && `${speed.toFixed(speed < 10 ? 1 : 0)}/s`,
    firstAt !== null && `first ${duration(firstAt - sentAt)}`,
    `total ${duration(endAt - sentAt)}`,
  ].filter(Boolean);
  const show = () => change((state) => { state.shown = message.id; state.pane = state.pane === "chat" ? "insight" : state.pane; });
  const toggle = () => change(() => { message.showTokens = !message.showTokens; });
  return [
    h("span", {}, texts.join(" · ")),
    h(
      "span",
      { class: "actions" },
      message.timings && button("Timeline", show, { "aria-pressed": String(isShown) }),
      message.tokens.length > 0 && button(message.showTokens ? "As text" : "As tokens", toggle),
      message.text && button("Copy", null, { "data-copy": message.text }),
      isLast && button(message.error ? "Try again" : "Again", retry),
    ),
  ];
}
