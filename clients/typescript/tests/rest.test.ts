import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";
import {
  type ChatRequest,
  EmbeddingSource,
  FinishReason,
  image,
  Modality,
  RestClient,
  serverSentEvents,
  ToolChoice_Mode,
  userMessage,
} from "../src/rest.js";
import { chunk, gateway, streaming } from "./support/gateway.js";

const USAGE = { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7, prompt_tokens_details: { image_tokens: 3 } };
const REPORT = {
  modality: "image",
  key: "0aff",
  num_tokens: 3,
  encoder_cache: "hit",
  source: "encoder",
  fetch_ms: 20,
  encode_ms: 4,
};
const EVENTS = [
  chunk({ delta: { role: "assistant", content: "" } }),
  chunk({ delta: { reasoning_content: "hm" } }),
  chunk({
    delta: { content: "Grün \u{1F600}" },
    token_ids: [4],
    logprobs: { content: [{ token: "G", logprob: -0.5, bytes: [71], top_logprobs: [] }] },
  }),
  chunk({
    delta: { tool_calls: [{ index: 0, id: "c", type: "function", function: { name: "add", arguments: "{" } }] },
  }),
  chunk({ delta: { tool_calls: [{ index: 0, function: { arguments: "}" } }] } }),
  chunk({ delta: {}, finish_reason: "tool_calls", stop_reason: "END" }),
  chunk(
    {},
    { choices: [], usage: USAGE, triptych: { media: [REPORT], timings: { queue_ms: 1500, num_preemptions: 2 } } },
  ),
  "data: [DONE]\n\n",
].join("");

/** The modules that a module imports, and those that they import. Of packages only the names. */
async function imports(module: URL, seen = new Set<string>()): Promise<Set<string>> {
  if (seen.has(module.href)) return seen;
  seen.add(module.href);
  const source = await readFile(module, "utf8");
  for (const [, name = ""] of source.matchAll(/^(?:import|export)\b.*?from "(.+?)";$|^import "(.+?)";$/gms)) {
    if (name.startsWith(".")) await imports(new URL(name, module), seen);
    else seen.add(name);
  }
  return seen;
}

test("the REST client imports nothing that a browser lacks", async () => {
  const modules = [...(await imports(new URL("../src/rest.js", import.meta.url)))];
  const packages = new Set(
    modules.filter((name) => !name.startsWith("file:")).map((name) => name.replace(/\/(codegenv2|wire|wkt)$/, "")),
  );
  assert.deepEqual([...packages], ["@bufbuild/protobuf"]);
});

test("events are the same however their bytes are split", async () => {
  const bytes = new TextEncoder().encode("data: Grün\r\n\r\ndata: \u{1F600}\n\n: a comment\n\ndata: [DONE]\n\n");
  for (let size = 1; size <= bytes.length; size++) {
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.subarray(at, at + size));
        controller.close();
      },
    });
    const events: string[] = [];
    for await (const event of serverSentEvents(body)) events.push(event);
    assert.deepEqual(events, ["Grün", "\u{1F600}", "[DONE]"], `pieces of ${size} bytes`);
  }
});

test("an answer has the fields that the gRPC client's has", async (t) => {
  const { url } = await gateway(t, streaming(EVENTS));
  const answer = await new RestClient({ url }).chat({ messages: [userMessage("?")] });
  const [choice] = answer.choices;
  assert.deepEqual([answer.requestId, answer.model], ["r1", "m"]);
  assert.deepEqual([choice?.text, choice?.reasoning, choice?.tokenIds], ["Grün \u{1F600}", "hm", [4]]);
  assert.deepEqual([choice?.logprobs[0]?.token, choice?.logprobs[0]?.logprob], ["G", -0.5]);
  assert.deepEqual(
    choice?.toolCalls.map((call) => [call.id, call.name, call.arguments]),
    [["c", "add", "{}"]],
  );
  assert.deepEqual(
    [choice.finishReason, choice.matchedStop],
    [FinishReason.TOOL_CALLS, { case: "stopText", value: "END" }],
  );
  const { promptTokens, completionTokens, imageTokens } = answer.usage ?? assert.fail();
  assert.deepEqual([promptTokens, completionTokens, imageTokens], [5, 2, 3]);
  assert.deepEqual([answer.timings?.queueS, answer.timings?.numPreemptions], [1.5, 2]);
  const [report] = answer.media;
  assert.deepEqual([report?.modality, report?.source, report?.fetchS], [Modality.IMAGE, EmbeddingSource.ENCODER, 0.02]);
  assert.deepEqual([Buffer.from(report?.key ?? []).toString("hex"), report?.encode?.encodeS], ["0aff", 0.004]);
});

test("a request has REST's names, and what REST does not have under its own", async (t) => {
  const { url, seen } = await gateway(t, streaming(EVENTS));
  const request: Partial<ChatRequest> & object = {
    model: "m",
    messages: [userMessage(image(Uint8Array.of(1, 2)), "?")],
  };
  const sampling = { temperature: 0, maxTokens: 8, logprobs: 3, seed: 7n, badTokenIds: [1] };
  const options = { sampling, stop: ["END"], constraint: { kind: { case: "regex" as const, value: "a+" } } };
  const tools = [{ name: "add", parametersJsonSchema: '{"type": "object"}' }];
  const toolChoice = { mode: ToolChoice_Mode.REQUIRED, allowedNames: ["add"] };
  const client = new RestClient({ url: `${url}/`, apiKey: "KEY" });
  await client.chat({ messages: request.messages ?? [], model: "m", options, tools, toolChoice }, { requestId: "r-1" });
  const { body, headers } = seen[0] ?? assert.fail();
  assert.deepEqual([headers.authorization, headers["x-request-id"]], ["Bearer KEY", "r-1"]);
  assert.deepEqual(body, {
    model: "m",
    messages: [
      {
        role: "user",
        content: [
          { type: "image_url", image_url: { url: "data:;base64,AQI=" } },
          { type: "text", text: "?" },
        ],
      },
    ],
    temperature: 0,
    max_tokens: 8,
    logprobs: true,
    top_logprobs: 3,
    seed: 7,
    bad_token_ids: [1],
    stop: ["END"],
    structured_outputs: { regex: "a+" },
    tools: [{ type: "function", function: { name: "add", parameters: { type: "object" } } }],
    tool_choice: {
      type: "allowed_tools",
      allowed_tools: { mode: "required", tools: [{ type: "function", function: { name: "add" } }] },
    },
    stream: true,
    stream_options: { include_usage: true },
  });
});

test("errors are of the classes of the gRPC client", async (t) => {
  const error =
    (status: number, code: string | null, headers: Record<string, string> = {}) =>
    async () => {
      const { url } = await gateway(t, (response) => {
        response.writeHead(status, headers).end(JSON.stringify({ error: { message: "no", param: "top_p", code } }));
      });
      await new RestClient({ url }).chat({});
    };
  await assert.rejects(error(400, "context_length_exceeded"), { name: "ContextLengthError", code: 3, field: "top_p" });
  await assert.rejects(error(400, "unknown_parameter"), { name: "InvalidRequestError", reason: "UNKNOWN_PARAMETER" });
  await assert.rejects(error(401, "invalid_api_key"), { name: "UnauthenticatedError", reason: "UNAUTHENTICATED" });
  await assert.rejects(error(429, "queue_full", { "retry-after": "3" }), { name: "QueueFullError", retryAfterS: 3 });
  await assert.rejects(error(503, null), { name: "ServiceUnavailableError", reason: "", hasDetails: false });
  const proxy = await gateway(t, (response) => response.writeHead(502).end("<html>"));
  await assert.rejects(new RestClient({ url: proxy.url }).chat({}), {
    name: "ServiceUnavailableError",
    message: "HTTP status 502",
  });
  await assert.rejects(new RestClient({ url: "http://127.0.0.1:1" }).chat({}), { name: "ServiceUnavailableError" });
});

test("an error event, and an end without [DONE], end the stream and keep what came before", async (t) => {
  const text = chunk({ delta: { content: "so far" } });
  const event = `data: ${JSON.stringify({ error: { message: "died", type: "server_error", param: null, code: "internal_error" } })}\n\n`;
  for (const [events, error] of [
    [text + event, { name: "InternalError", reason: "INTERNAL", message: "died", code: 13 }],
    [text, { name: "ServiceUnavailableError" }],
  ] as const) {
    const { url } = await gateway(t, streaming(events));
    const answer = new RestClient({ url }).chatStream({});
    await assert.rejects(answer.finalResponse(), error);
    assert.equal(answer.response.choices[0]?.text, "so far");
  }
});

test("break, a signal and a deadline close the connection", async (t) => {
  let closed = 0;
  let tell: () => void = () => undefined;
  const { url } = await gateway(t, (response) => {
    response.on("close", () => {
      closed += 1;
      tell();
    });
    response.writeHead(200).write(chunk({ delta: { content: "x" } }));
  });
  const client = new RestClient({ url });
  const untilClosed = (count: number): Promise<void> =>
    new Promise((resolve) => {
      tell = () => {
        if (closed >= count) resolve();
      };
      tell();
    });
  for await (const text of client.chatStream({}).text()) {
    assert.equal(text, "x");
    break;
  }
  await untilClosed(1);
  const controller = new AbortController();
  const answer = client.chatStream({}, { signal: controller.signal });
  await answer.next();
  controller.abort("enough");
  await assert.rejects(answer.next(), { name: "RequestAbortedError", cause: "enough" });
  await untilClosed(2);
  await assert.rejects(client.chat({}, { timeoutMs: 100 }), { name: "DeadlineExceededError" });
  await untilClosed(3);
});
