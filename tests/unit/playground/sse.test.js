// The reader of server-sent events, fed with bytes cut at every position.

import assert from "node:assert/strict";
import { test } from "node:test";

import { events } from "./sse.js";

/** A stream of these pieces of bytes. */
function streamOf(pieces) {
  const left = [...pieces];
  return new ReadableStream({
    pull: (controller) => (left.length ? controller.enqueue(left.shift()) : controller.close()),
  });
}

async function read(pieces) {
  const all = [];
  for await (const data of events(streamOf(pieces))) all.push(data);
  return all;
}

const CASES = {
  "line feeds": ["data: one\n\ndata: two\n\n", ["one", "two"]],
  "carriage returns": ["data: one\r\rdata: two\r\r", ["one", "two"]],
  "both": ["data: one\r\n\r\ndata: two\r\n\r\n", ["one", "two"]],
  "mixed endings": ["data: one\r\n\ndata: two\n\r\n", ["one", "two"]],
  "characters of several bytes": ["data: {\"a\": \"é 🎨 中\"}\n\ndata: ü\n\n", ["{\"a\": \"é 🎨 中\"}", "ü"]],
  "several lines of data": ["data: one\ndata: two\n\n", ["one\ntwo"]],
  "no space, and more than one": ["data:one\n\ndata:  two\n\n", ["one", " two"]],
  "an empty value": ["data\n\ndata:\n\n", ["", ""]],
  "comments and other fields": [": hello\nevent: x\nid: 1\ndata: one\nretry: 5\n\n: end\n\n", ["one"]],
  "a byte order mark": ["\uFEFFdata: one\n\n", ["one"]],
  "an event that is cut off": ["data: one\n\ndata: two\n", ["one"]],
  "nothing": ["", []],
};

for (const [name, [text, expected]] of Object.entries(CASES)) {
  const bytes = new TextEncoder().encode(text);

  test(`${name}: cut in two at every position`, async () => {
    for (let at = 0; at <= bytes.length; at += 1) {
      assert.deepEqual(await read([bytes.slice(0, at), bytes.slice(at)]), expected, `cut at ${at}`);
    }
  });

  test(`${name}: byte by byte`, async () => {
    assert.deepEqual(await read([...bytes].map((byte) => Uint8Array.of(byte))), expected);
  });
}

test("events come before the stream ends", async () => {
  let send;
  const stream = new ReadableStream({ start: (controller) => { send = (text) => controller.enqueue(new TextEncoder().encode(text)); } });
  const reader = events(stream);
  send("data: one\n\nda");
  assert.deepEqual(await reader.next(), { done: false, value: "one" });
  send("ta: two\n\n");
  assert.deepEqual(await reader.next(), { done: false, value: "two" });
  await reader.return();
});

test("leaving the loop early cancels the stream", async () => {
  let isCancelled = false;
  const bytes = new TextEncoder().encode("data: one\n\ndata: two\n\n");
  const stream = new ReadableStream({
    start: (controller) => controller.enqueue(bytes),
    cancel: () => { isCancelled = true; },
  });
  for await (const data of events(stream)) {
    assert.equal(data, "one");
    break;
  }
  assert.equal(isCancelled, true);
});

test("a stream that fails hands its error on", async () => {
  const stream = new ReadableStream({ pull: (controller) => controller.error(new Error("lost")) });
  await assert.rejects(events(stream).next(), /lost/);
});
