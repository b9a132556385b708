// Sends a turn, receives its answer, stops it.

import { applyChunk, endAnswer, newAnswer, newQuestion } from "./answer.js";
import { ApiError, call, findModels } from "./api.js";
import { FieldError, requestOf, settingOf } from "./request.js";
import { events } from "./sse.js";
import { change, state, whyNoChat } from "./state.js";

/** Send a turn of the user. Returns false if there is nothing to send, or if a setting is wrong, which is then shown. */
export function send(text) {
  const { media, numReading } = state.draft;
  if (state.live || (text.trim() === "" && !media.length && !numReading) || !isValid()) return false;
  if (numReading) {
    change((state) => { state.notice = "A file is still being read."; });
    return false;
  }
  change((state) => {
    state.messages.push(newQuestion(text, media));
    state.draft.media = [];
  });
  answer();
  return true;
}

/** Send the results of the last answer's tool calls. */
export function sendResults() {
  if (!state.live && isValid()) answer();
}

/** Ask again for the last answer. */
export function retry() {
  if (state.live || !isValid()) return;
  if (state.messages.at(-1)?.role === "assistant") state.messages.pop();
  answer();
}

/** Stop the answer that is being received. The gateway sees that the connection ends, and cancels the work. */
export function stop() {
  state.live?.abort();
}

/** Begin a new conversation. */
export function clear() {
  stop();
  for (const { media = [] } of state.messages) media.forEach(({ url }) => URL.revokeObjectURL(url));
  change((state) => Object.assign(state, { messages: [], shown: null, notice: "", status: "" }));
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
  });
}

async function answer() {
  const live = new AbortController();
  const reply = newAnswer(performance.now());
  const body = requestOf(state);
  const { messages } = state;
  change((state) => {
    messages.push(reply);
    Object.assign(state, { live, shown: null, notice: "", status: "Answering" });
  });
  try {
    const response = await call("v1/chat/completions", { signal: live.signal, body });
    await receive(response, reply);
    change((state) => { endAnswer(reply, performance.now()); state.status = "Answer complete"; });
  } catch (error) {
    const stopped = live.signal.aborted;
    change((state) => {
      endAnswer(reply, performance.now(), { stopped, error: stopped ? null : error.message });
      state.status = stopped ? "Stopped" : "The answer failed";
    });
    if (stopped) return;
    const field = settingOf(error.param);
    if (field) show(field, error.message);
    // The gateway went away, or it has other models now.
    if ([0, 404].includes(error.status)) findModels();
  } finally {
    if (state.live === live) change((state) => { state.live = null; });
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
