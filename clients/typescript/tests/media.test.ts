import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";
import { create } from "@bufbuild/protobuf";
import {
  assistantMessage,
  audio,
  ChoiceSchema,
  image,
  imageFile,
  Modality,
  toolMessage,
  userMessage,
  video,
} from "../src/index.js";

const PICTURE = "../../examples/three-shapes.png";

test("a message has its parts in their order, and a file's bytes as they are", async () => {
  const message = userMessage(await imageFile(PICTURE, { uuid: "shapes" }), "Where is the triangle?");
  assert.equal(message.role, "user");
  const [picture, text] = message.content.map(({ part }) => part);
  assert.ok(picture?.case === "media" && text?.case === "text");
  assert.equal(picture.value.modality, Modality.IMAGE);
  assert.equal(picture.value.uuid, "shapes");
  assert.ok(picture.value.source.case === "data");
  assert.deepEqual(Buffer.from(picture.value.source.value), await readFile(PICTURE));
  assert.equal(text.value, "Where is the triangle?");
});

test("bytes are sent, and addresses are named", () => {
  const items = [
    image(new URL("https://example.com/a.png")),
    audio(Uint8Array.of(1), { format: "wav" }),
    video("data:,x"),
  ];
  assert.deepEqual(
    items.map(({ modality, source }) => [modality, source]),
    [
      [Modality.IMAGE, { case: "url", value: "https://example.com/a.png" }],
      [Modality.AUDIO, { case: "data", value: Uint8Array.of(1) }],
      [Modality.VIDEO, { case: "url", value: "data:,x" }],
    ],
  );
  assert.equal(items[1]?.format, "wav");
});

test("a file that is not there is an error that names it", async () => {
  await assert.rejects(imageFile("no/such.png"), /no\/such\.png/);
});

test("an answer becomes a turn of the conversation, with its tool calls", () => {
  const call = { id: "c1", name: "add", arguments: "{}" };
  const turn = assistantMessage(create(ChoiceSchema, { text: "Hi", reasoning: "hm", toolCalls: [call] }));
  assert.deepEqual([turn.role, turn.content[0]?.part.value, turn.reasoning], ["assistant", "Hi", "hm"]);
  assert.equal(turn.toolCalls[0]?.name, "add");
  assert.deepEqual(assistantMessage(create(ChoiceSchema, { toolCalls: [call] })).content, []);
  assert.equal(toolMessage("c1", "3").toolCallId, "c1");
});
