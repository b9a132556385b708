/** Between the messages of triptych.v1 and the JSON of POST /v1/chat/completions. */
import { fromJson, type JsonObject, type JsonValue, toJson } from "@bufbuild/protobuf";
import { base64Encode } from "@bufbuild/protobuf/wire";
import { Modality } from "./gen/triptych/v1/common_pb.js";
import {
  type ChatMessage,
  type ChatRequest,
  ChatRequestSchema,
  type ChatStreamResponse,
  ChatStreamResponseSchema,
  type ContentPart,
} from "./gen/triptych/v1/generation_pb.js";

type Json = Record<string, JsonValue | undefined>;
const text = (value: JsonValue | undefined): string => (typeof value === "string" ? value : "");
const word = (value: JsonValue | undefined, prefix: string): string => text(value).replace(prefix, "").toLowerCase();
const list = (value: JsonValue | undefined): Json[] => (value ?? []) as Json[];

/**
 * The body of a request. What REST has no field for goes under its own name, so that the gateway refuses it by that name.
 * Throws Error for what JSON cannot carry.
 */
export function requestBody(request: ChatRequest): Json {
  const withUrls = { ...request, messages: request.messages.map(withDataUrls) };
  const chat = toJson(ChatRequestSchema, withUrls, { useProtoFieldName: true }) as JsonObject;
  const { messages, options, template_kwargs, tools, tool_choice, reasoning, ...others } = chat;
  const { sampling, include_stop_in_output, constraint, ...generation } = (options ?? {}) as Json;
  const { logprobs, seed, ...numbers } = (sampling ?? {}) as Json;
  const { effort, max_tokens: thinking_token_budget, ...reasoningOthers } = (reasoning ?? {}) as Json;
  return {
    ...others,
    ...generation,
    ...numbers,
    ...reasoningOthers,
    messages: list(messages).map(messageBody),
    chat_template_kwargs: template_kwargs,
    include_stop_str_in_output: include_stop_in_output,
    structured_outputs: constraint && constraintBody(constraint as Json),
    ...(logprobs === undefined ? {} : { logprobs: true, top_logprobs: logprobs }),
    seed: seed === undefined ? undefined : seedBody(Number(seed), text(seed)),
    reasoning_effort: effort,
    thinking_token_budget,
    tools: tools && list(tools).map(toolBody),
    tool_choice: tool_choice && toolChoiceBody(tool_choice as Json),
    stream: true,
    stream_options: { include_usage: true },
  };
}

/** The message with its files as data: addresses. Protobuf's own base64 takes seconds for a large picture. */
function withDataUrls(message: ChatMessage): ChatMessage {
  return {
    ...message,
    content: message.content.map(({ part, ...others }) => ({ ...others, part: withDataUrl(part) })),
  };
}

function withDataUrl(part: ContentPart["part"]): ContentPart["part"] {
  if (part.case !== "media" || part.value.source.case !== "data") return part;
  const { format = "", modality, source } = part.value; // The format: png, or image/png.
  const mime = format && !format.includes("/") ? `${Modality[modality].toLowerCase()}/${format}` : format;
  const url = `data:${mime};base64,${base64(source.value)}`;
  return { case: "media", value: { ...part.value, source: { case: "url", value: url } } };
}

function base64(bytes: Uint8Array): string {
  const size = 24_576; // A multiple of 3, and fewer than a call may have arguments.
  let encoded = "";
  for (let at = 0; at < bytes.length; at += size) {
    encoded += btoa(String.fromCharCode(...bytes.subarray(at, at + size)));
  }
  return encoded;
}

function seedBody(seed: number, exact: string): number {
  if (!Number.isSafeInteger(seed)) throw new Error(`options.sampling.seed is ${exact}: JSON carries 53 bits`);
  return seed;
}

function messageBody({ content, reasoning, tool_calls, ...others }: Json): JsonValue {
  const calls = list(tool_calls).map(({ id, name = "", arguments: json = "" }) => ({
    id,
    type: "function",
    function: { name, arguments: json },
  }));
  return {
    ...others,
    content: content ? list(content).map(partBody) : null,
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(tool_calls ? { tool_calls: calls } : {}),
  } as JsonValue;
}

function partBody({ media, ...part }: Json): JsonValue {
  if (!media) return { type: "text", text: text(part.text) };
  const { modality, url, detail, processor_options, ...others } = media as Json;
  delete others.format; // It is in the data: address.
  const type = `${word(modality, "MODALITY_")}_url`;
  const kwargs = processor_options === undefined ? {} : { mm_processor_kwargs: processor_options };
  return { ...others, ...kwargs, type, [type]: url === undefined ? undefined : { url, detail } };
}

function constraintBody({ json_schema, choice, ...others }: Json): JsonValue {
  return { ...others, json: json_schema, choice: (choice as Json | undefined)?.values } as JsonValue;
}

function toolBody({ parameters_json_schema, ...others }: Json): JsonValue {
  const json = text(parameters_json_schema);
  try {
    const parameters = json ? (JSON.parse(json) as JsonValue) : undefined;
    return { type: "function", function: { ...others, parameters } as JsonValue };
  } catch (error) {
    const message = `tool ${text(others.name)}: parametersJsonSchema is not JSON: ${(error as Error).message}`;
    throw new Error(message, { cause: error });
  }
}

function toolChoiceBody({ mode, allowed_names }: Json): JsonValue {
  const how = word(mode ?? "MODE_AUTO", "MODE_");
  if (!allowed_names) return how;
  const tools = (allowed_names as string[]).map((name) => ({ type: "function", function: { name } }));
  return { type: "allowed_tools", allowed_tools: { mode: how, tools } };
}

const FINISH: Record<string, string> = { stop: "STOP", tool_calls: "TOOL_CALLS", length: "LENGTH" };
const TIERS: Record<string, string> = { hit: "LOCAL", miss: "MISS", joined: "JOINED", shared: "SHARED" };

/** The response that an event of the stream stands for. */
export function streamResponse(chunk: Json): ChatStreamResponse {
  const usage = chunk.usage as Json | null | undefined;
  const cost = chunk.triptych as Json | null | undefined;
  const response = {
    request_id: text(chunk.id).replace(/^chatcmpl-/, ""),
    model: chunk.model,
    choices: list(chunk.choices).flatMap(deltas),
    ...(usage && {
      usage: { ...usage, ...(usage.prompt_tokens_details as Json), ...(usage.completion_tokens_details as Json) },
    }),
    ...(cost?.timings && { timings: seconds(cost.timings as Json) }),
    media: list(cost?.media).map(mediaReport),
  };
  return fromJson(ChatStreamResponseSchema, response as JsonObject, { ignoreUnknownFields: true });
}

function deltas(choice: Json): JsonValue[] {
  const { content, reasoning_content, tool_calls } = (choice.delta ?? {}) as Json;
  const { index = 0, stop_reason, finish_reason, token_ids, logprobs } = choice;
  const news: Json[] = [];
  if (reasoning_content) news.push({ index, reasoning: reasoning_content });
  if (content) news.push({ index, text: content });
  for (const { index: place, id, function: call } of list(tool_calls)) {
    news.push({ index, tool_call: { index: place, id: text(id), ...(call as Json) } as JsonValue });
  }
  const last = news.pop() ?? { index };
  if (token_ids) last.token_ids = token_ids;
  if (logprobs) last.logprobs = list((logprobs as Json).content).map(tokenLogprob);
  if (finish_reason) last.finish_reason = `FINISH_REASON_${FINISH[text(finish_reason)] ?? "UNSPECIFIED"}`;
  if (stop_reason != null) last[typeof stop_reason === "number" ? "stop_token_id" : "stop_text"] = stop_reason;
  return Object.keys(last).length > 1 ? ([...news, last] as JsonValue[]) : [];
}

function tokenLogprob({ token, logprob, bytes, top_logprobs }: Json): JsonValue {
  const utf8 = base64Encode(Uint8Array.from((bytes ?? []) as number[]));
  return { token, logprob, utf8, ...(top_logprobs ? { top: list(top_logprobs).map(tokenLogprob) } : {}) } as JsonValue;
}

/** preprocess_ms: 1500 -> preprocess_s: 1.5 */
function seconds(timings: Json): Json {
  const rename = ([name, value]: [string, unknown]) =>
    name.endsWith("_ms") ? [`${name.slice(0, -2)}s`, Number(value) / 1000] : [name, value];
  return Object.fromEntries(Object.entries(timings).map(rename) as [string, JsonValue][]);
}

function mediaReport({ modality, key, encoder_cache, source, ...others }: Json): JsonValue {
  const bytes = Uint8Array.from(text(key).match(/../g) ?? [], (digits) => parseInt(digits, 16));
  const times = seconds(others);
  return {
    ...times,
    encode: times,
    modality: `MODALITY_${text(modality).toUpperCase()}`,
    key: base64Encode(bytes),
    tier: `CACHE_TIER_${TIERS[text(encoder_cache)] ?? "UNSPECIFIED"}`,
    source: `EMBEDDING_SOURCE_${text(source).toUpperCase() || "UNSPECIFIED"}`,
  } as JsonValue;
}
