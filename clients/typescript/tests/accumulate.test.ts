import assert from "node:assert/strict";
import test from "node:test";
import { create, fromBinary } from "@bufbuild/protobuf";
import {
  ChatAccumulator,
  ChatStreamResponseSchema,
  CompleteAccumulator,
  CompleteStreamResponseSchema,
  FinishReason,
  Modality,
} from "../src/index.js";

test("pieces of each kind are joined per choice, and choices are in the order of their indices", () => {
  const accumulator = new ChatAccumulator();
  const delta = (index: number, kind: "text" | "reasoning", value: string) => ({ index, delta: { case: kind, value } });
  for (const choices of [
    [delta(1, "text", "b")],
    [delta(0, "reasoning", "hm"), delta(0, "text", "a")],
    [delta(0, "text", "A"), delta(1, "text", "B")],
  ]) {
    accumulator.add(create(ChatStreamResponseSchema, { requestId: "r", model: "m", choices }));
  }
  const { requestId, model, choices } = accumulator.response;
  assert.deepEqual([requestId, model], ["r", "m"]);
  assert.deepEqual(
    choices.map(({ index, text, reasoning }) => ({ index, text, reasoning })),
    [
      { index: 0, text: "aA", reasoning: "hm" },
      { index: 1, text: "bB", reasoning: "" },
    ],
  );
});

test("tool calls are joined by their index; id and name are the first piece's", () => {
  const accumulator = new ChatAccumulator();
  const piece = (index: number, id: string, name: string, args: string) => ({
    delta: { case: "toolCall" as const, value: { index, id, name, arguments: args } },
  });
  const pieces = [
    piece(0, "x", "add", '{"a"'),
    piece(2, "y", "sub", ""),
    piece(0, "", "", ":1}"),
    piece(2, "", "", "{}"),
  ];
  accumulator.add(create(ChatStreamResponseSchema, { choices: pieces }));
  assert.deepEqual(
    accumulator.response.choices[0]?.toolCalls.map((call) => [call.id, call.name, call.arguments]),
    [
      ["x", "add", '{"a":1}'],
      ["y", "sub", "{}"],
    ],
  );
});

test("tokens and log probabilities are appended, and what comes once is kept", () => {
  const accumulator = new ChatAccumulator();
  const first = { tokenIds: [1, 2], logprobs: [{ tokenId: 1 }], promptLogprobs: [{ tokenId: 9 }], promptTokens: 4 };
  const stop = { case: "stopText" as const, value: "END" };
  const last = { tokenIds: [3], logprobs: [{ tokenId: 3 }], finishReason: FinishReason.STOP, matchedStop: stop };
  accumulator.add(create(ChatStreamResponseSchema, { choices: [first] }));
  accumulator.add(create(ChatStreamResponseSchema, { choices: [last] }));
  const cost = { usage: { promptTokens: 4 }, timings: { queueS: 0.5 }, media: [{ modality: Modality.IMAGE }] };
  accumulator.add(create(ChatStreamResponseSchema, cost));
  const { choices, usage, timings, media } = accumulator.response;
  const [choice] = choices;
  assert.deepEqual(choice?.tokenIds, [1, 2, 3]);
  assert.deepEqual(
    choice.logprobs.map(({ tokenId }) => tokenId),
    [1, 3],
  );
  assert.deepEqual(
    choice.promptLogprobs.map(({ tokenId }) => tokenId),
    [9],
  );
  assert.equal(choice.finishReason, FinishReason.STOP);
  assert.deepEqual(choice.matchedStop, stop);
  assert.deepEqual([usage?.promptTokens, timings?.queueS, media.length], [4, 0.5, 1]);
});

test("a list that is too long for the arguments of a function is appended", () => {
  const accumulator = new CompleteAccumulator();
  const tokenIds = new Array<number>(300_000).fill(1);
  accumulator.add(create(CompleteStreamResponseSchema, { choices: [{ tokenIds }] }));
  assert.equal(accumulator.response.choices[0]?.tokenIds.length, 300_000);
});

test("a finish reason of a newer server keeps its number", () => {
  const accumulator = new CompleteAccumulator();
  const newer = Uint8Array.of(0x1a, 2, 0x38, 77); // choices { finish_reason: 77 }
  accumulator.add(fromBinary(CompleteStreamResponseSchema, newer));
  assert.equal(accumulator.response.choices[0]?.finishReason, 77);
});

test("a completion has the reports on its media", () => {
  const accumulator = new CompleteAccumulator();
  accumulator.add(create(CompleteStreamResponseSchema, { media: [{ numTokens: 4 }] }));
  accumulator.add(create(CompleteStreamResponseSchema, {}));
  assert.equal(accumulator.response.media[0]?.numTokens, 4);
});
