// From the state to the body of POST /v1/chat/completions.

import { pathOf } from "./chats/tree.js";

const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty"];
/** Settings that are numbers. */
export const NUMBERS = [...SAMPLING, "top_logprobs"];

/** A setting that cannot be sent. Its field is the name of the setting. */
export class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** The body of the request for the next answer. Throws FieldError. */
export function requestOf(state) {
  const { settings } = state;
  const body = {
    model: state.model,
    messages: conversation(pathOf(state.chat)),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  if (settings.system.trim() !== "") body.messages.unshift({ role: "system", content: settings.system });
  for (const name of SAMPLING) if (settings[name] !== "") body[name] = numberOf(name, settings[name]);
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length) body.stop = stop;
  if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: numberOf("top_logprobs", settings.top_logprobs) });
  const tools = toolsOf(settings.tools);
  if (tools) Object.assign(body, { tools, tool_choice: settings.tool_choice });
  const schema = schemaOf(settings.schema);
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  return body;
}

/** The number that a field holds. Throws FieldError. */
export function numberOf(name, value) {
  const number = Number(value);
  if (!Number.isFinite(number)) throw new FieldError(name, "This is not a number.");
  return number;
}

/** The tools in a text: a list of tools or of functions, or a single one. Null for an empty text. Throws FieldError. */
export function toolsOf(text) {
  const value = json("tools", text);
  if (value === null) return null;
  const tools = (Array.isArray(value) ? value : [value]).map((tool) => (tool?.name ? { type: "function", function: tool } : tool));
  for (const tool of tools) {
    if (typeof tool?.function?.name !== "string") throw new FieldError("tools", "Each tool needs a name.");
  }
  return tools;
}

/** The JSON Schema in a text. Null for an empty text. Throws FieldError. */
export function schemaOf(text) {
  const value = json("schema", text);
  if (value !== null && (typeof value !== "object" || Array.isArray(value))) {
    throw new FieldError("schema", "A JSON Schema is an object.");
  }
  return value;
}

function json(field, text) {
  if (text.trim() === "") return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new FieldError(field, `This is not JSON: ${error.message}`);
  }
}

/** The setting that a field of the request comes from; null for other fields, for example messages. */
export function settingOf(param) {
  const name = /^[a-z_]+/.exec(param ?? "")?.[0] ?? "";
  if (name === "response_format") return "schema";
  return [...NUMBERS, "stop", "tools", "tool_choice", "logprobs"].includes(name) ? name : null;
}

/** The messages that the model gets. A turn whose answer failed before its first word is left out. */
function conversation(messages) {
  const sent = messages.filter((message, index) => {
    const answer = message.role === "user" ? messages[index + 1] : message;
    return answer === undefined || answer.live || answer.role !== "assistant" || answer.text !== "" || answer.calls.length > 0;
  });
  return sent.flatMap((message) => (message.role === "user" ? [userMessage(message)] : assistantMessages(message)));
}

function userMessage({ text, media }) {
  if (!media.length) return { role: "user", content: text };
  const parts = media.map(partOf);
  return { role: "user", content: text === "" ? parts : [...parts, { type: "text", text }] };
}

function partOf({ kind, name, format, dataUrl }) {
  if (kind === "file") return { type: "file", file: { filename: name, file_data: dataUrl } };
  if (kind === "audio") return { type: "input_audio", input_audio: { data: dataUrl.slice(dataUrl.indexOf(",") + 1), format } };
  return { type: `${kind}_url`, [`${kind}_url`]: { url: dataUrl } };
}

function assistantMessages({ live, text, calls }) {
  if (live) return [];
  if (!calls.length) return [{ role: "assistant", content: text }];
  const tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  const results = calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result }));
  return [{ role: "assistant", content: text || null, tool_calls }, ...results];
}
