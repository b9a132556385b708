// An answer: its reasoning, text or tokens, calls of tools, what it cost.

import { tokensPerSecond } from "../answer.js";
import { retry, sendResults } from "../chat.js";
import { versionsOf } from "../chats/tree.js";
import { button, count, duration, h, renderOnce, setText } from "../dom.js";
import { showTokens } from "../insight/tokens.js";
import { change } from "../state.js";
import { showMarkdown } from "./markdown.js";
import { branchButton, versionButtons } from "./question_view.js";

/** The nodes of an answer. */
export function answerView() {
  const part = (tag, name, properties = {}) => h(tag, { class: name, ...properties });
  const view = {
    thought: part("div", "thought"),
    text: part("div", "text markdown"),
    tokens: part("div", "text tokens", { role: "group", "aria-label": "Tokens. The arrow keys move between them." }),
    calls: part("div", "calls"),
    error: part("p", "error", { role: "alert" }),
    pace: part("p", "pace", { "aria-live": "off" }),
    waiting: h("p", { class: "waiting", "aria-hidden": "true" }, h("span"), h("span"), h("span")),
    footer: part("footer", "facts"),
  };
  view.reasoning = h("details", { class: "reasoning", open: true }, h("summary", {}, "Reasoning"), view.thought);
  view.node = h(
    "article",
    { class: "assistant", "aria-label": "Answer" },
    view.reasoning, view.text, view.tokens, view.calls, view.waiting, view.pace, view.error, view.footer,
  );
  return view;
}

/**
 * Show what is new of an answer.
 *
 * @param {{ chat: object, models: object[], isLast: boolean, isTimed: boolean }} place whether it ends the conversation, and
 *   whether the timeline is its own
 */
export function updateAnswer(view, message, place) {
  const { chat, isLast, isTimed } = place;
  const versions = versionsOf(chat, message);
  const isBusy = chat.live !== null;
  const key = `${message.version} ${isLast} ${isTimed} ${message.showTokens} ${versions.length} ${isBusy} ${place.models.length}`;
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
  view.pace.hidden = !message.live || message.firstAt === null;
  if (message.live) setText(view.pace, pace(message));
  view.footer.hidden = message.live;
  if (!message.live) renderOnce(view.footer, key, () => facts(message, { ...place, versions, isBusy }));
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

/** What an answer that is being received costs so far. */
function pace(message) {
  return costs(message, performance.now()).join(" · ");
}

/** Tokens, their rate, and the time to the first one, where they are known. */
function costs(message, now) {
  const { usage, sentAt, firstAt } = message;
  const speed = tokensPerSecond(message, now);
  return [
    usage && `${count(usage.completion_tokens)} ${usage.completion_tokens === 1 ? "token" : "tokens"}`,
    speed && `${speed.toFixed(speed < 10 ? 1 : 0)}/s`,
    firstAt !== null && `first ${duration(firstAt - sentAt)}`,
  ].filter(Boolean);
}

/** What the answer cost, and what can be done with it. */
function facts(message, { models, isTimed, versions, isBusy }) {
  const { sentAt, endAt } = message;
  const texts = [
    models.length > 1 && message.model,
    ENDS[message.finish],
    ...costs(message),
    endAt !== null && `total ${duration(endAt - sentAt)}`,
  ].filter(Boolean);
  const show = () => change((state) => { state.shown = message.id; state.pane = state.pane === "chat" ? "insight" : state.pane; });
  const toggle = () => change(() => { message.showTokens = !message.showTokens; });
  return [
    h("span", {}, texts.join(" · ")),
    h(
      "span",
      { class: "actions" },
      versionButtons(message, versions, isBusy),
      message.timings && button("Timeline", show, { "aria-pressed": String(isTimed) }),
      message.tokens.length > 0 && button(message.showTokens ? "As text" : "As tokens", toggle),
      message.text && button("Copy", null, { "data-copy": message.text }),
      branchButton(message),
      !isBusy && button(message.error ? "Try again" : "Again", () => retry(message)),
    ),
  ];
}
