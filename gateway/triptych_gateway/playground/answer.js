// An answer as it is received: how the chunks of a stream change it, and what it cost.

/** A message that nothing was received for yet. */
export function newAnswer(now, model) {
  return {
    role: "assistant", model, version: 0, live: true,
    text: "", reasoning: "", tokens: [], calls: [], showTokens: true,
    finish: null, error: null, usage: null, media: [], timings: null,
    sentAt: now, firstAt: null, endAt: null,
  };
}

/** A message of the user. */
export function newQuestion(text, media) {
  return { role: "user", version: 0, text, media };
}

/** Apply a chunk of the stream to an answer. */
export function applyChunk(answer, chunk, now) {
  const choice = chunk.choices?.[0];
  if (choice) {
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (answer.firstAt === null && (content || reasoning || calls)) answer.firstAt = now;
    answer.text += content ?? "";
    answer.reasoning += reasoning ?? "";
    for (const call of calls ?? []) applyCall(answer.calls, call);
    answer.tokens.push(...(choice.logprobs?.content ?? []));
    if (choice.finish_reason) answer.finish = choice.finish_reason;
  }
  if (chunk.usage) answer.usage = chunk.usage;
  if (chunk.triptych) {
    answer.media = chunk.triptych.media ?? [];
    answer.timings = chunk.triptych.timings;
  }
  answer.version += 1;
}

function applyCall(calls, piece) {
  const call = (calls[piece.index] ??= { id: "", name: "", arguments: "", result: "" });
  call.id ||= piece.id ?? "";
  call.name ||= piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}

/** End an answer: `finish` is stopped if the user ended it; `error` is why it failed. */
export function endAnswer(answer, now, { stopped = false, error = null } = {}) {
  answer.live = false;
  answer.endAt = now;
  if (stopped) answer.finish = "stopped";
  answer.error = error;
  answer.version += 1;
}

/** In a shorter time the browser measures no rate, in milliseconds: the first chunks may come together. */
const LEAST_MS = 500;

/** Output tokens per second between the first and the last token; null if not known. Without timings, as the browser saw it. */
export function tokensPerSecond({ usage, timings, firstAt, endAt }, now) {
  const ms = timings ? timings.decode_ms : (endAt ?? now) - firstAt;
  if (!usage || !ms || (!timings && ms < LEAST_MS) || usage.completion_tokens < 2) return null;
  return ((usage.completion_tokens - 1) / ms) * 1000;
}
