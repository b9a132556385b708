import assert from "node:assert/strict";
import test from "node:test";
import { create } from "@bufbuild/protobuf";
import * as grpc from "@grpc/grpc-js";
import * as triptych from "../src/index.js";
import { type Behaviour, connect, serve, serviceError } from "./support/fake_server.js";

/** Reason, code, class: the table of docs/contracts.md. */
const TABLE: [string, grpc.status, string][] = [
  ["INVALID_REQUEST", grpc.status.INVALID_ARGUMENT, "InvalidRequestError"],
  ["CONTEXT_LENGTH_EXCEEDED", grpc.status.INVALID_ARGUMENT, "ContextLengthError"],
  ["KV_CACHE_CAPACITY_EXCEEDED", grpc.status.INVALID_ARGUMENT, "NeverFitsError"],
  ["MODEL_NOT_FOUND", grpc.status.NOT_FOUND, "ModelNotFoundError"],
  ["DUPLICATE_REQUEST", grpc.status.ALREADY_EXISTS, "DuplicateRequestError"],
  ["QUEUE_FULL", grpc.status.RESOURCE_EXHAUSTED, "QueueFullError"],
  ["MEDIA_NOT_FOUND", grpc.status.NOT_FOUND, "MediaNotFoundError"],
  ["EMBEDDING_UNAVAILABLE", grpc.status.FAILED_PRECONDITION, "EmbeddingUnavailableError"],
  ["ABORTED", grpc.status.ABORTED, "RequestAbortedError"],
  ["DEADLINE_EXCEEDED", grpc.status.DEADLINE_EXCEEDED, "DeadlineExceededError"],
  ["UNAUTHENTICATED", grpc.status.UNAUTHENTICATED, "UnauthenticatedError"],
  ["PERMISSION_DENIED", grpc.status.PERMISSION_DENIED, "PermissionDeniedError"],
  ["UNIMPLEMENTED", grpc.status.UNIMPLEMENTED, "UnimplementedError"],
  ["INTERNAL", grpc.status.INTERNAL, "InternalError"],
  ["STARTUP", grpc.status.FAILED_PRECONDITION, "StartupError"],
  ["UNSUPPORTED_MODEL", grpc.status.FAILED_PRECONDITION, "UnsupportedModelError"],
  // A reason of a newer server: the class goes by the code.
  ["BRAND_NEW", grpc.status.INVALID_ARGUMENT, "InvalidRequestError"],
  ["BRAND_NEW", grpc.status.DATA_LOSS, "InternalError"],
];

function failing(error: Error): Record<string, Behaviour> {
  return { tokenize: { unary: () => Promise.reject(error) } };
}

async function errorOf(t: test.TestContext, thrown: Error): Promise<triptych.TriptychError> {
  const client = connect(t, await serve(t, failing(thrown)));
  const error: unknown = await client.tokenize({ text: "x" }).catch((reason: unknown) => reason);
  assert.ok(error instanceof triptych.TriptychError);
  return error;
}

test("the details of a status choose the class and fill the fields", async (t) => {
  for (const [reason, code, name] of TABLE) {
    const error = await errorOf(t, serviceError(code, reason, "a sentence"));
    assert.equal(error.name, name);
    assert.ok(error instanceof ((triptych as unknown as Record<string, typeof Error>)[name] ?? Array));
    const { message, field, limit, value, hasDetails, retryAfterS } = error;
    assert.deepEqual([error.code, error.reason], [code, reason]);
    assert.deepEqual([message, field, limit, value], ["a sentence", "messages[0].role", "5", "7"]);
    assert.deepEqual([hasDetails, retryAfterS], [true, undefined]);
  }
});

test("the tree has the classes' parents", () => {
  const fields = { code: 3 };
  assert.ok(new triptych.ContextLengthError("", fields) instanceof triptych.InvalidRequestError);
  assert.ok(new triptych.NeverFitsError("", fields) instanceof triptych.InvalidRequestError);
  assert.ok(new triptych.UnsupportedModelError("", fields) instanceof triptych.StartupError);
});

test("a full queue is tried again when it says, and otherwise not", async (t) => {
  for (const [retryAfterMs, attempts] of [
    [50, 2],
    [61_000, 1],
    [undefined, 1],
  ] as const) {
    let calls = 0;
    const behaviour = {
      unary: () => {
        calls += 1;
        if (calls > 1) return Promise.resolve(create(triptych.TokenizeResponseSchema, { tokenIds: [1] }));
        return Promise.reject(serviceError(grpc.status.RESOURCE_EXHAUSTED, "QUEUE_FULL", "full", retryAfterMs));
      },
    };
    const client = connect(t, await serve(t, { tokenize: behaviour }));
    const call = client.tokenize({ text: "x" });
    if (attempts === 2) assert.deepEqual((await call).tokenIds, [1]);
    else await assert.rejects(call, { name: "QueueFullError", retryAfterS: retryAfterMs && retryAfterMs / 1000 });
    assert.equal(calls, attempts);
  }
});

test("a status without details is the transport's: the class goes by the code, and the reason is empty", async (t) => {
  const error = await errorOf(t, Object.assign(new Error(), { code: grpc.status.NOT_FOUND, details: "gone" }));
  assert.deepEqual(
    [error.name, error.reason, error.message, error.hasDetails],
    ["ModelNotFoundError", "", "gone", false],
  );
});

test("details that cannot be read are left out", async (t) => {
  const metadata = new grpc.Metadata();
  metadata.set("grpc-status-details-bin", Buffer.from([255, 255, 255]));
  const error = await errorOf(t, Object.assign(new Error(), { code: grpc.status.INTERNAL, details: "odd", metadata }));
  assert.deepEqual([error.name, error.message, error.hasDetails], ["InternalError", "odd", false]);
});

test("a request that has no wire format names the field, and is not sent", async (t) => {
  const client = connect(t, await serve(t, {}));
  const request = { messages: [], options: { sampling: { maxTokens: -1 } } };
  await assert.rejects(client.chat(request), (error: Error) => {
    assert.ok(error instanceof triptych.InvalidRequestError);
    return /max_tokens.*-1/.test(error.message);
  });
});

test("metadata that HTTP/2 cannot carry is refused without its value", async (t) => {
  const client = connect(t, await serve(t, {}), { apiKey: "s\u00e9cret\n" });
  await assert.rejects(client.listModels(), (error: Error) => {
    assert.ok(error instanceof triptych.InvalidRequestError);
    return error.message.includes("authorization") && !error.message.includes("cret");
  });
});

test("a closed client and an absent server are ServiceUnavailableError", async () => {
  const client = new triptych.TriptychClient({ address: "127.0.0.1:1", timeoutMs: 5000 });
  await assert.rejects(client.listModels(), { name: "ServiceUnavailableError", hasDetails: false });
  client.close();
  await assert.rejects(client.listModels(), { name: "ServiceUnavailableError", message: "this client is closed" });
});

test("an error in the middle of a stream keeps what came before", async (t) => {
  const stream: Behaviour["stream"] = (call) => {
    const choices = [{ delta: { case: "text" as const, value: "so far" } }];
    call.write(create(triptych.ChatStreamResponseSchema, { choices }));
    call.emit("error", serviceError(grpc.status.INTERNAL, "INTERNAL", "a step failed"));
  };
  const client = connect(t, await serve(t, { chatStream: { stream } }));
  const answer = client.chatStream({ chat: {} });
  await assert.rejects(answer.finalResponse(), { name: "InternalError", message: "a step failed" });
  assert.equal(answer.response.choices[0]?.text, "so far");
  assert.deepEqual(await answer.next(), { done: true, value: undefined });
  await assert.rejects(answer.finalResponse(), { name: "InternalError" });
});
