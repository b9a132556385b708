// Sends a turn, receives its answer, stops it, asks again.

import { applyChunk, endAnswer, newAnswer, newQuestion } from "./answer.js";
import { ApiError, call, findModels } from "./api.js";
import { keep } from "./chats/chats.js";
import { append, forget, showVersion } from "./chats/tree.js";
import { FieldError, requestOf, settingOf } from "./request.js";
import { events } from "./sse.js";
import { change, state, whyNoChat } from "./state.js";

/** An answer that is being received is kept so often, in milliseconds. */
const KEEP_MS = 1000;

/** Send a turn of the user. Returns false if there is nothing to send, or if a setting is wrong, which is then shown. */
export function send(text) {
  const { media, numReading } = state.draft;
  if (state.chat.live || (text.trim() === "" && !media.length && !numReading) || !isValid()) return false;
  if (numReading) {
    change((state) => { state.notice = "A file is still being read."; });
    return false;
  }
  change((state) => {
    append(state.chat, newQuestion(text, media));
    state.draft.media = [];
  });
  answer();
  return true;
}

/** Send another version of a question. Returns false if it cannot be sent. */
export function resend(question, text) {
  if (state.chat.live || (text.trim() === "" && !question.media.length) || !isValid()) return false;
  change((state) => {
    append(state.chat, newQuestion(text, question.media), question.parent);
    state.editing = null;
  });
  answer();
  return true;
}

/** Send the results of the last answer's tool calls. */
export function sendResults() {
  if (state.chat.live || !isValid()) return;
  change((state) => { state.chat.all[state.chat.head].version += 1; });
  answer();
}

/** Ask for another version of an answer. */
export function retry(reply) {
  if (state.chat.live || !isValid()) return;
  state.chat.head = reply.parent;
  if (reply.text === "" && !reply.calls.length) forget(state.chat, reply);
  answer();
}

/** Show another version of a message, with what follows it. */
export function choose(message) {
  change((state) => {
    showVersion(state.chat, message);
    state.shown = null;
  });
  keep(state.chat);
}

/** Stop the answer that is being received. The gateway sees that the connection ends, and cancels the work. */
export function stop() {
  state.chat.live?.abort();
}

/** Whether the settings can be sent. If not, the fault is shown at its field. */
function isValid() {
  const why = state.model === "" ? state.trouble || "The gateway has not told its model yet." : whyNoChat(state);
  if (why) {
    change((state) => { state.notice = why; });
    return false;
  }
  try {
    requestOf(state);
    return true;
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    show(error.field, error.message);
    return false;
  }
}

function show(field, message) {
  change((state) => {
    state.faults[field] = message;
    state.notice = `A setting is wrong: ${message}`;
    state.side = "settings";
  });
}

async function answer() {
  const live = new AbortController();
  const reply = newAnswer(performance.now(), state.model);
  const body = requestOf(state);
  const { chat } = state;
  const say = (status) => { if (chat === state.chat) state.status = status; };
  change((state) => {
    append(chat, reply);
    chat.live = live;
    Object.assign(state, { shown: null, notice: "", status: "Answering" });
  });
  keep(chat);
  const keeping = setInterval(() => keep(chat), KEEP_MS);
  try {
    const response = await call("v1/chat/completions", { signal: live.signal, body });
    await receive(response, reply);
    change((state) => { endAnswer(reply, performance.now()); say("Answer complete"); });
  } catch (error) {
    const stopped = live.signal.aborted;
    change((state) => {
      endAnswer(reply, performance.now(), { stopped, error: stopped ? null : error.message });
      say(stopped ? "Stopped" : "The answer failed");
    });
    if (stopped) return;
    const field = settingOf(error.param);
    if (field) show(field, error.message);
    // The gateway went away, or it has other models now.
    if ([0, 404].includes(error.status)) findModels();
  } finally {
    clearInterval(keeping);
    change(() => { chat.live = null; });
    keep(chat);
  }
}

async function receive(response, reply) {
  for await (const data of received(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(response.status, chunk.error);
    change(() => applyChunk(reply, chunk, performance.now()));
  }
  throw lost();
}

/** The events of a stream, with an error for people if the connection is lost. */
async function* received(stream) {
  try {
    yield* events(stream);
  } catch (error) {
    throw error.name === "AbortError" ? error : lost();
  }
}

function lost() {
  return new ApiError(0, { message: "The connection was lost before the end of the answer." });
}
