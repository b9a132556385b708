import assert from "node:assert/strict";
import test, { type TestContext } from "node:test";
import { create, type Message } from "@bufbuild/protobuf";
import * as grpc from "@grpc/grpc-js";
import {
  ChatRequestSchema,
  ChatResponseSchema,
  FinishReason,
  IncompleteAnswerError,
  InvalidRequestError,
  TokenizeResponseSchema,
  TriptychClient,
  userMessage,
} from "../src/index.js";
import { type Behaviour, connect, serve } from "./support/fake_server.js";

type Unary = Pick<grpc.ServerUnaryCall<Message, Message>, "metadata">;

/** A variable of the environment until the test ends. */
function environment(t: TestContext, name: string, value: string): void {
  const before = process.env[name];
  process.env[name] = value;
  t.after(() => {
    if (before === undefined) Reflect.deleteProperty(process.env, name);
    else process.env[name] = before;
  });
}

/** Answers with nothing, and notes the metadata of each call. */
function noting(): { behaviour: Behaviour; keys: unknown[] } {
  const keys: unknown[] = [];
  const unary = (_: Message, call: Unary): Promise<Message> => {
    keys.push(call.metadata.get("authorization")[0]);
    return Promise.resolve(create(TokenizeResponseSchema));
  };
  return { behaviour: { unary }, keys };
}

test("address and key come from the environment, unless they are given", async (t) => {
  const { behaviour, keys } = noting();
  const address = await serve(t, { tokenize: behaviour });
  environment(t, "TRIPTYCH_ADDRESS", address);
  environment(t, "TRIPTYCH_API_KEY", "told");
  for (const options of [undefined, { apiKey: "given" }, { apiKey: "" }, { address: "127.0.0.1:1" }]) {
    const client = new TriptychClient(options);
    t.after(() => {
      client.close();
    });
    const call = client.tokenize({ text: "x" }, { timeoutMs: 2000 });
    if (options && "address" in options) await assert.rejects(call);
    else await call;
  }
  assert.deepEqual(keys, ["Bearer told", "Bearer given", undefined]);
});

test("several endpoints take turns, and one that is away is left out", async (t) => {
  const [one, two] = [noting(), noting()];
  const addresses = [await serve(t, { tokenize: one.behaviour }), await serve(t, { tokenize: two.behaviour })];
  const client = new TriptychClient({ address: [...addresses, "127.0.0.1:1"] });
  t.after(() => {
    client.close();
  });
  for (let number = 0; number < 20; number += 1) await client.tokenize({ text: "x" });
  assert.equal(one.keys.length + two.keys.length, 20);
  assert.ok(Math.min(one.keys.length, two.keys.length) >= 5, `${String(one.keys.length)}, ${String(two.keys.length)}`);
});

test("what cannot be an address is refused", () => {
  for (const address of ["", " , ", ["a.example:1", "b.example:1"], ["127.0.0.1:1", "[::1]:1"]]) {
    assert.throws(() => new TriptychClient({ address }), InvalidRequestError);
  }
});

test("interceptors are around each call", async (t) => {
  const { behaviour } = noting();
  const methods: string[] = [];
  const interceptor: grpc.Interceptor = (options, next) => {
    methods.push(options.method_definition.path);
    return new grpc.InterceptingCall(next(options));
  };
  const client = connect(t, await serve(t, { tokenize: behaviour }), { interceptors: [interceptor] });
  await client.tokenize({ text: "x" });
  assert.deepEqual(methods, ["/triptych.v1.PreprocessService/Tokenize"]);
});

test("an answer becomes a value", async (t) => {
  const schemas: unknown[] = [];
  let finishReason = FinishReason.STOP;
  const unary = (request: Message): Promise<Message> => {
    const { options } = request as unknown as { options: { constraint: { kind: { value: string } } } };
    schemas.push(JSON.parse(options.constraint.kind.value));
    return Promise.resolve(create(ChatResponseSchema, { choices: [{ text: '{"a": 1}', finishReason }] }));
  };
  const client = connect(t, await serve(t, { chat: { unary } }));
  const schema = { type: "object", properties: { a: { type: "integer" } } };
  const request = create(ChatRequestSchema, { messages: [userMessage("?")] });
  const parse = (json: unknown): number => (json as { a: number }).a;
  assert.equal((await client.parse(request, { schema, parse })).value, 1);
  assert.deepEqual((await client.parse(request, { schema })).value, { a: 1 });
  assert.equal(request.options, undefined, "the caller's request stays as it is");
  finishReason = FinishReason.LENGTH;
  await assert.rejects(client.parse(request, { schema }), IncompleteAnswerError);
  const regex = { messages: [], options: { constraint: { kind: { case: "regex" as const, value: "a" } } } };
  await assert.rejects(client.parse(regex, { schema }), InvalidRequestError);
  assert.deepEqual(schemas, [schema, schema, schema]);
});
