import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { image, RestClient, userMessage } from "../src/rest.js";
import { chunk, gateway, streaming } from "./support/gateway.js";

test("errors of a proxy, and answers that cannot be read, are told as what they are", async (t) => {
  const answered = (status: number, body: string) => async () => {
    const { url } = await gateway(t, (response) => response.writeHead(status).end(body));
    await new RestClient({ url }).chat({});
  };
  const byStatus = { name: "InvalidRequestError", message: "HTTP status 400", hasDetails: false };
  for (const body of ["null", '{"error": null}', '{"error": "no"}', "<html>", ""]) {
    await assert.rejects(answered(400, body), byStatus);
  }
  await assert.rejects(answered(400, '{"error": {"message": "no", "code": 400}}'), { ...byStatus, message: "no" });
  const event = 'data: {"error": {"message": "no", "code": 400}}\n\n';
  await assert.rejects(answered(200, event), { name: "InternalError", message: "no", reason: "" });
  for (const event of ["data: null\n\n", "data: {\n\n", 'data: {"choices": 1}\n\n']) {
    await assert.rejects(answered(200, event), { name: "InternalError", message: /cannot be read/ });
  }
  const { url } = await gateway(t, (response) => {
    response.writeHead(200).write(chunk({ delta: { content: "x" } }), () => response.destroy());
  });
  const lost = new RestClient({ url }).chatStream({});
  await assert.rejects(lost.finalResponse(), { name: "ServiceUnavailableError" });
  assert.equal(lost.response.choices[0]?.text, "x");
});

test("what HTTP or JSON cannot carry is refused by name, without secrets", async (t) => {
  const { url, seen } = await gateway(t, streaming("data: [DONE]\n\n"));
  const client = new RestClient({ url });
  const refused = (message: RegExp) => ({ name: "InvalidRequestError", message });
  assert.throws(() => new RestClient({ url, apiKey: "ключ" }), refused(/^apiKey: [^к]*$/));
  const seed = (value: bigint) => ({ options: { sampling: { seed: value } } });
  assert.throws(() => client.chatStream({}, { requestId: "a\nb" }), refused(/requestId/));
  assert.throws(() => client.chatStream({}, { timeoutMs: NaN }), refused(/timeoutMs/));
  assert.throws(() => client.chatStream(seed(2n ** 53n + 1n)), refused(/seed .*9007199254740993/));
  assert.throws(
    () => client.chatStream({ tools: [{ name: "add", parametersJsonSchema: "{" }] }),
    refused(/tool add: .*JSON/),
  );
  await assert.rejects(client.chat({}, { timeoutMs: NaN }), refused(/timeoutMs/)); // rejects: it does not throw
  assert.equal(seen.length, 0);
  await client.chat(seed(-(2n ** 53n) + 1n));
  assert.equal(seen[0]?.body.seed, -Number.MAX_SAFE_INTEGER);
});

test("a picture is sent as base64, whatever its length, with its type", async (t) => {
  const { url, seen } = await gateway(t, streaming("data: [DONE]\n\n"));
  const bytes = Uint8Array.from({ length: 100_001 }, (_, index) => (index * 7) % 256);
  const lengths = [0, 1, 2, 3, 24_575, 24_576, 24_577, 100_001];
  const messages = lengths.map((length) => userMessage(image(bytes.subarray(0, length), { format: "png" })));
  await new RestClient({ url }).chat({ messages });
  const sent = (seen[0]?.body.messages as { content: { image_url: { url: string } }[] }[]).map(
    ({ content }) => content[0]?.image_url.url,
  );
  const expected = lengths.map(
    (length) => `data:image/png;base64,${Buffer.from(bytes.subarray(0, length)).toString("base64")}`,
  );
  assert.deepEqual(sent, expected);
  assert.equal(messages[3]?.content[0]?.part.case === "media" && messages[3].content[0].part.value.source.case, "data");
});

test("a loop that is left early leaves neither a timer nor a listener", async (t) => {
  const { url } = await gateway(t, (response) => response.writeHead(200).write(chunk({ delta: { content: "x" } })));
  const client = new RestClient({ url });
  const { signal } = new AbortController();
  const timers = (): number => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
  const before = timers();
  for await (const text of client.chatStream({}, { signal, timeoutMs: 60_000 }).text()) {
    assert.equal(text, "x");
    assert.deepEqual([getEventListeners(signal, "abort").length, timers() > before], [1, true]);
    break;
  }
  await sleep(0);
  assert.equal(getEventListeners(signal, "abort").length, 0);
  const waiting = client.chatStream({}, { signal, timeoutMs: 60_000 });
  await waiting.next();
  const next = waiting.next();
  waiting.cancel();
  assert.deepEqual(await next, { done: true, value: undefined });
  await sleep(0);
  assert.equal(getEventListeners(signal, "abort").length, 0);
});

test("a deadline beyond what timers take is none", async (t) => {
  const { url } = await gateway(t, streaming(`${chunk({ delta: { content: "x" } })}data: [DONE]\n\n`));
  const answer = await new RestClient({ url }).chat({}, { timeoutMs: Number.MAX_SAFE_INTEGER });
  assert.equal(answer.requestId, "r1");
});
