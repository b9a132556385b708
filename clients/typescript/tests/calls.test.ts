import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import test from "node:test";
import { create, type Message, toBinary } from "@bufbuild/protobuf";
import * as grpc from "@grpc/grpc-js";
import {
  ChatResponseSchema,
  ChatStreamResponseSchema,
  image,
  MediaReportSchema,
  type MediaReport,
  ModelInfoSchema,
  ListModelsResponseSchema,
  ScoreResponseSchema,
  TokenizeResponseSchema,
  trailingMedia,
  userMessage,
} from "../src/index.js";
import { certificates, connect, serve, serviceError, write } from "./support/fake_server.js";

const piece = (value: string): Message =>
  create(ChatStreamResponseSchema, { choices: [{ delta: { case: "text", value } }] });

type Stream = grpc.ServerWritableStream<Message, Message>;

/** Sends pieces until the client goes; resolves with how many it has sent by then. */
function endless(): { stream: (call: Stream) => Promise<void>; cancelled: Promise<number> } {
  let tell: (sent: number) => void;
  const cancelled = new Promise<number>((resolve) => (tell = resolve));
  const stream = async (call: Stream): Promise<void> => {
    let sent = 0;
    call.once("cancelled", () => {
      tell(sent);
    });
    while (!call.cancelled) {
      await write(call, piece("x"));
      sent += 1;
      await sleep(5);
    }
  };
  return { stream, cancelled };
}

/** Answers with nothing until the client goes. */
function silent(): {
  stream: (call: Stream) => void;
  started: Promise<void>;
  cancelled: Promise<void>;
  calls: Stream[];
} {
  const calls: Stream[] = [];
  let start: () => void;
  let end: () => void;
  const started = new Promise<void>((resolve) => (start = resolve));
  const cancelled = new Promise<void>((resolve) => (end = resolve));
  const stream = (call: Stream): void => {
    calls.push(call);
    start();
    call.once("cancelled", end);
  };
  return { stream, started, cancelled, calls };
}

test("a stream is read whole, as responses, as text, and as the final answer", async (t) => {
  const stream = async (call: Stream): Promise<void> => {
    for (const text of ["a", "b", "c"]) await write(call, piece(text));
    call.end();
  };
  const client = connect(t, await serve(t, { chatStream: { stream } }));
  let responses = 0;
  for await (const response of client.chatStream({ chat: {} })) responses += response.choices.length;
  assert.equal(responses, 3);
  const answer = client.chatStream({ chat: {} });
  const texts: string[] = [];
  for await (const text of answer.text()) texts.push(text);
  assert.deepEqual(texts, ["a", "b", "c"]);
  assert.equal((await answer.finalResponse()).choices[0]?.text, "abc");
});

test("leaving the loop cancels the call on the server", async (t) => {
  const { stream, cancelled } = endless();
  const client = connect(t, await serve(t, { chatStream: { stream } }));
  const answer = client.chatStream({ chat: {} });
  let read = 0;
  for await (const text of answer.text()) {
    read += text.length;
    if (read === 3) break;
  }
  assert.ok((await cancelled) >= 3);
  assert.equal(answer.response.choices[0]?.text, "xxx");
  assert.equal((await answer.next()).done, true);
  await assert.rejects(answer.finalResponse(), { name: "RequestAbortedError" });
});

test("a stream can be cancelled before its first response, while its reader waits, and is not sent again", async (t) => {
  const { stream, started, cancelled, calls } = silent();
  const client = connect(t, await serve(t, { chatStream: { stream } }));
  const answer = client.chatStream({ chat: {} });
  const next = answer.next();
  await started;
  answer.cancel();
  assert.deepEqual(await next, { done: true, value: undefined });
  await cancelled;
  // A retry would come after 0.1 s.
  await sleep(300);
  assert.equal(calls.length, 1);
});

test("a signal ends a stream with its reason, also between responses that wait to be read", async (t) => {
  const { stream, cancelled } = endless();
  const client = connect(t, await serve(t, { chatStream: { stream } }));
  const controller = new AbortController();
  const answer = client.chatStream({ chat: {} }, { signal: controller.signal });
  await answer.next();
  await sleep(50);
  const reason = new Error("enough");
  controller.abort(reason);
  await assert.rejects(answer.next(), { name: "RequestAbortedError", cause: reason });
  await cancelled;
});

test("a signal ends a unary call, and one that was given before prevents it", async (t) => {
  let tell: () => void;
  const cancelled = new Promise<void>((resolve) => (tell = resolve));
  let calls = 0;
  const controller = new AbortController();
  const unary = (_: Message, call: grpc.ServerUnaryCall<Message, Message>): Promise<Message> => {
    calls += 1;
    call.once("cancelled", tell);
    controller.abort();
    return new Promise(() => undefined);
  };
  const client = connect(t, await serve(t, { chat: { unary } }));
  await assert.rejects(client.chat({}, { signal: controller.signal }), { name: "RequestAbortedError" });
  await cancelled;
  await assert.rejects(client.chat({}, { signal: controller.signal }), { name: "RequestAbortedError" });
  assert.equal(calls, 1);
});

test("a deadline ends a call on both sides: that of the call before that of the client", async (t) => {
  const { stream, cancelled } = silent();
  const client = connect(t, await serve(t, { chatStream: { stream } }), { timeoutMs: 60_000 });
  const answer = client.chatStream({ chat: {} }, { timeoutMs: 100 });
  await assert.rejects(answer.next(), { name: "DeadlineExceededError", reason: "" });
  await cancelled;
  const impatient = connect(t, await serve(t, { chatStream: silent() }), { timeoutMs: 100 });
  await assert.rejects(impatient.chatStream({ chat: {} }).finalResponse(), { name: "DeadlineExceededError" });
});

test("a deadline that gRPC cannot carry is none, and one that is no number is refused", async (t) => {
  const unary = (): Message => create(TokenizeResponseSchema, { tokenIds: [1] });
  const client = connect(t, await serve(t, { tokenize: { unary } }));
  const answer = await client.tokenize({ text: "x" }, { timeoutMs: Number.MAX_SAFE_INTEGER });
  assert.deepEqual(answer.tokenIds, [1]);
  const refused = { name: "InvalidRequestError", field: "timeoutMs" };
  await assert.rejects(client.tokenize({}, { timeoutMs: NaN }), refused);
});

/** A server whose first calls are UNAVAILABLE after some pieces. */
function flaky(failures: number, pieces = 0): { stream: (call: Stream) => Promise<void>; calls: () => number } {
  let calls = 0;
  const stream = async (call: Stream): Promise<void> => {
    calls += 1;
    const fails = calls <= failures;
    for (let i = 0; i < (fails ? pieces : 2); i++) await write(call, piece("x"));
    if (fails) throw serviceError(grpc.status.UNAVAILABLE, "SERVICE_UNAVAILABLE", "draining") as Error;
    call.end();
  };
  return { stream, calls: () => calls };
}

test("UNAVAILABLE is tried again before the first response, three times, also with a picture of 3 MB", async (t) => {
  const picture = userMessage(image(new Uint8Array(3_000_000)), "?");
  const { stream, calls } = flaky(3);
  const client = connect(t, await serve(t, { chatStream: { stream } }));
  const answer = await client.chatStream({ chat: { messages: [picture] } }).finalResponse();
  assert.equal(answer.choices[0]?.text, "xx");
  assert.equal(calls(), 4);
  const hopeless = flaky(9);
  const other = connect(t, await serve(t, { chatStream: hopeless }));
  const error = { name: "ServiceUnavailableError", reason: "SERVICE_UNAVAILABLE", message: "draining" };
  await assert.rejects(other.chatStream({ chat: { messages: [picture] } }).finalResponse(), error);
  assert.equal(hopeless.calls(), 4);
});

test("nothing is tried again once a response was received", async (t) => {
  const { stream, calls } = flaky(1, 1);
  const client = connect(t, await serve(t, { chatStream: { stream } }));
  const answer = client.chatStream({ chat: {} });
  await assert.rejects(answer.finalResponse(), { name: "ServiceUnavailableError" });
  assert.equal(answer.response.choices[0]?.text, "x");
  assert.equal(calls(), 1);
});

test("a reader that pauses makes the server wait, and does not hold up other calls", async (t) => {
  let sent = 0;
  const text = "x".repeat(256 << 10);
  const stream = async (call: Stream): Promise<void> => {
    for (; sent < 64; sent++) await write(call, piece(text));
    call.end();
  };
  const unary = (): Message => create(TokenizeResponseSchema, { tokenIds: [1] });
  const client = connect(t, await serve(t, { chatStream: { stream }, tokenize: { unary } }));
  const answer = client.chatStream({ chat: {} });
  await answer.next();
  await sleep(1000);
  const whilePaused = sent;
  assert.ok(whilePaused < 64, `the server sent ${whilePaused} of 64 responses to a reader that paused after the first`);
  assert.deepEqual((await client.tokenize({ text: "x" })).tokenIds, [1]);
  const { choices } = await answer.finalResponse();
  assert.equal(choices[0]?.text.length, 64 * text.length);
});

test("a message of 60 MiB passes in both directions", async (t) => {
  const unary = (request: Message): Message =>
    create(ChatResponseSchema, { model: (request as unknown as { model: string }).model });
  const client = connect(t, await serve(t, { chat: { unary } }));
  const model = "m".repeat(60 << 20);
  assert.equal((await client.chat({ model })).model.length, model.length);
});

test("key, request id and own metadata are sent; trailing media reports are read", async (t) => {
  const reports = [7, 8].map((numTokens) => create(MediaReportSchema, { numTokens, key: Uint8Array.of(1) }));
  let seen: Record<string, unknown> = {};
  const stream = (call: Stream): void => {
    seen = call.metadata.getMap();
    const trailer = new grpc.Metadata();
    for (const report of reports) trailer.add("triptych-media-bin", Buffer.from(toBinary(MediaReportSchema, report)));
    call.end(trailer);
  };
  const client = connect(t, await serve(t, { chatStream: { stream } }), { apiKey: "KEY" });
  let media: MediaReport[] = [];
  const options = {
    requestId: "r-1",
    metadata: { "x-team": "a" },
    onTrailer: (trailer: grpc.Metadata) => void (media = trailingMedia(trailer)),
  };
  await client.chatStream({ chat: {} }, options).finalResponse();
  assert.deepEqual([seen.authorization, seen["x-request-id"], seen["x-team"]], ["Bearer KEY", "r-1", "a"]);
  assert.deepEqual(
    media.map(({ numTokens }) => numTokens),
    [7, 8],
  );
  assert.deepEqual(media[0]?.key, Uint8Array.of(1)); // Not a Buffer.
});

test("rerank sorts the scores, and names the documents by their places", async (t) => {
  const unary = (): Message => create(ScoreResponseSchema, { scores: [0.25, 0.75, 0.5, 0.75] });
  const client = connect(t, await serve(t, { score: { unary } }));
  assert.deepEqual(
    (await client.rerank({})).map(({ index }) => index),
    [1, 3, 2, 0],
  );
});

test("TLS with a private authority; with mTLS, the client shows its certificate", async (t) => {
  const { path, read } = certificates(t);
  const pair = { cert_chain: read("server.pem"), private_key: read("server.key") };
  const unary = (): Message => create(ListModelsResponseSchema, { models: [create(ModelInfoSchema, { name: "m" })] });
  const address = await serve(t, { listModels: { unary } }, grpc.ServerCredentials.createSsl(null, [pair]));
  const tls = { rootCertificates: path("ca.pem"), serverName: "frontend.test" };
  assert.equal((await connect(t, address, { tls }).listModels()).models[0]?.name, "m");
  const refused = { name: "ServiceUnavailableError" };
  await assert.rejects(connect(t, address, { tls: { rootCertificates: path("ca.pem") } }).listModels(), refused);
  await assert.rejects(connect(t, address, { tls: { serverName: "frontend.test" } }).listModels(), refused);
  await assert.rejects(connect(t, address).listModels(), refused);

  const mutual = grpc.ServerCredentials.createSsl(read("ca.pem"), [pair], true);
  const strict = await serve(t, { listModels: { unary } }, mutual);
  const own = { ...tls, certificate: path("client.pem"), privateKey: path("client.key") };
  assert.equal((await connect(t, strict, { tls: own }).listModels()).models[0]?.name, "m");
  await assert.rejects(connect(t, strict, { tls }).listModels(), refused);
});
