// The messages. Each has its nodes for as long as the chat is shown; only what changed is rendered again.

import { pathOf } from "../chats/tree.js";
import { byId, removeFrom } from "../dom.js";
import { releaseUrls } from "../media.js";
import { shownAnswer } from "../state.js";
import { answerView, updateAnswer } from "./answer_view.js";
import { questionView, updateQuestion } from "./question_view.js";

/** The chat that is shown, and message -> its view. */
let shown = null;
let views = new Map();
/** Whether the end is kept in view: until the reader scrolls up, or edits a message. */
let follows = true;
/** The answer that was received at the last rendering. */
let live = null;

/** Keep the end in view while messages grow, also by pictures that load late. Called once. */
export function wireConversation() {
  const log = byId("log");
  let last = 0;
  log.addEventListener("scroll", () => {
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 80) follows = true;
    else if (log.scrollTop < last) follows = false;
    last = log.scrollTop;
  });
  const sizes = new ResizeObserver(toEnd);
  sizes.observe(log);
  sizes.observe(byId("messages"));
}

function toEnd() {
  const log = byId("log");
  if (follows) log.scrollTop = log.scrollHeight;
}

/** Show the conversation. */
export function renderConversation(state) {
  const list = byId("messages");
  if (shown !== state.chat) {
    shown = state.chat;
    views = new Map();
    releaseUrls(state.draft.media);
    follows = true;
  }
  if (state.chat.live !== live) {
    live = state.chat.live;
    follows ||= live !== null;
  }
  if (state.editing !== null) follows = false;
  const path = pathOf(state.chat);
  byId("welcome").hidden = path.length > 0;
  const timed = shownAnswer(state);
  let next = list.firstElementChild;
  for (const message of path) {
    const view = viewOf(message);
    if (message.role === "user") updateQuestion(view, message, state);
    else updateAnswer(view, message, { ...state, isLast: message === path.at(-1), isTimed: message === timed });
    if (view.node === next) next = next.nextElementSibling;
    else list.insertBefore(view.node, next);
  }
  removeFrom(next);
  list.setAttribute("aria-busy", String(state.chat.live !== null));
  toEnd();
}

function viewOf(message) {
  if (!views.has(message)) views.set(message, message.role === "user" ? questionView(message) : answerView());
  return views.get(message);
}
