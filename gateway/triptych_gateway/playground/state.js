// The state of the page: one object. Every change goes through `change`, which renders the page before the next frame.

import { newChat, pathOf } from "./chats/tree.js";

const KEY = "triptych-api-key";

/** The settings of a page that nothing was chosen on: the model's own. */
export const defaults = {
  system: "", temperature: "", top_p: "", top_k: "", min_p: "", max_tokens: "", seed: "",
  frequency_penalty: "", presence_penalty: "", stop: "", tools: "", tool_choice: "auto", schema: "",
  logprobs: false, top_logprobs: "5",
};

export const state = {
  /** API key, kept for this tab only. */
  key: sessionStorage.getItem(KEY) ?? "",
  /** Why the key is asked for, or null while its dialog is closed. */
  keyWanted: null,
  /** Models of the gateway, as in /v1/models. */
  models: [],
  model: "",
  /** Why the gateway does not answer; empty while it does. */
  trouble: "",
  /** The chat that is shown: see chats/tree.js. While an answer of it is received, `live` is its AbortController. */
  chat: newChat(),
  /** What is listed of the chats of this browser, newest first: { id, title, at, text }. */
  chats: [],
  /** Words that listed chats have. */
  search: "",
  /** What is said below the list of chats. */
  chatsNotice: "",
  /** Id of the question that is edited, or null. */
  editing: null,
  draft: { media: [], numReading: 0, isRecording: false, isCameraOn: false },
  settings: { ...defaults },
  /** Name -> settings. */
  presets: {},
  /** Name of the preset that was chosen; empty for none. */
  preset: "",
  /** Name of a setting -> what is wrong with it. */
  faults: {},
  /** Which pane is shown where only one has room: chats, chat, settings or insight. */
  pane: "chat",
  /** Which pane is at the left where there is room for three: chats or settings. */
  side: "chats",
  /** Id of the answer whose timeline is shown; null for the last one. */
  shown: null,
  /** Another object after each answer of the gateway, and each new trouble. */
  load: { now: null, history: new Map(), trouble: "" },
  /** A short message that is shown at the field for messages. */
  notice: "",
  /** What is going on, for screen readers only. */
  status: "",
};

let render = () => {};
let isScheduled = false;

/** Set the function that renders the state. */
export function onChange(callback) {
  render = callback;
}

/** Change the state, and render it. Several changes before a frame are rendered once. */
export function change(mutate) {
  mutate(state);
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    render(state);
  });
}

/** Keep the key for this tab, or forget it if it is empty. */
export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  change((state) => { state.key = key; state.keyWanted = null; });
}

/** The chosen model as in /v1/models, or undefined before it is known. */
export function modelOf(state) {
  return state.models.find((model) => model.id === state.model);
}

/** Why the model does not chat, or an empty string if it does or is not known yet. */
export function whyNoChat(state) {
  const tasks = modelOf(state)?.triptych.tasks ?? [];
  return !tasks.length || tasks.includes("generate") ? "" : `${state.model} generates no text. It does: ${tasks.join(", ")}.`;
}

/** Why the model cannot take a kind of media, or an empty string if it can. */
export function whyNot(state, kind) {
  const model = modelOf(state);
  if (model === undefined) return "No model is known yet.";
  if (kind === "file") return ""; // the gateway makes text of it
  return model.triptych.modalities.includes(kind) ? "" : `${model.id} does not take ${kind === "audio" ? "sound" : `${kind}s`}.`;
}

/** The answer whose timeline is shown. */
export function shownAnswer(state) {
  const answers = pathOf(state.chat).filter((message) => message.role === "assistant");
  return answers.find((message) => message.id === state.shown) ?? answers.at(-1);
}
