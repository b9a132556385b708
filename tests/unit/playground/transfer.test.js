// Files with chats: what is exported is imported, and what is not a chat is refused by name.

import assert from "node:assert/strict";
import { test } from "node:test";
import { endAnswer, newAnswer, newQuestion } from "./answer.js";
import { append, newChat } from "./chats/tree.js";
import { exported, imported } from "./chats/transfer.js";

function chatted() {
  const chat = { ...newChat(), title: "Of shapes" };
  const media = [{ kind: "image", name: "a.png", format: null, dataUrl: "data:image/png;base64,AAAA" }];
  append(chat, newQuestion("What is it?", media));
  const answer = newAnswer(5, "a/model");
  Object.assign(answer, { text: "A square", reasoning: "Hm", firstAt: 7, usage: { completion_tokens: 3 } });
  answer.tokens = [{ token: "A" }];
  answer.calls = [{ id: "1", name: "look", arguments: "{}", result: "seen" }];
  append(chat, answer);
  endAnswer(answer, 9);
  return chat;
}

test("what is exported is imported, with another id and without log probabilities", () => {
  const chat = chatted();
  const [copy] = imported(exported([chat]));
  assert.notEqual(copy.id, chat.id);
  assert.deepEqual({ ...copy, id: chat.id }.all[0], chat.all[0]);
  assert.deepEqual({ ...copy.all[1], version: 0 }, { ...chat.all[1], tokens: [], version: 0 });
  assert.deepEqual([copy.title, copy.head, copy.at], ["Of shapes", 1, chat.at]);
});

test("an answer that is still received is exported as far as it is known", () => {
  const chat = chatted();
  append(chat, newAnswer(10, "a/model"));
  assert.equal(imported(exported([chat]))[0].all.length, 3);
});

for (const [name, [break_, said]] of Object.entries({
  "no file of this page": [(file) => { file.format = "other"; }, "It was not exported by this page."],
  "a later version": [(file) => { file.version = 2; }, "Its version is 2; this page reads version 1."],
  "no list": [(file) => { file.chats = {}; }, "chats is not a list."],
  "a message that follows a later one": [
    (file) => { file.chats[0].all[0].parent = 1; },
    "chats[0].all[0].parent is not an earlier message.",
  ],
  "a message that follows itself": [
    (file) => { file.chats[0].all[1].parent = 1; },
    "chats[0].all[1].parent is not an earlier message.",
  ],
  "an end that is not there": [(file) => { file.chats[0].head = 2; }, "chats[0].head is not an earlier message."],
  "another role": [(file) => { file.chats[0].all[1].role = "system"; }, "chats[0].all[1].role is not user or assistant."],
  "a text of another type": [(file) => { file.chats[0].all[1].text = {}; }, "chats[0].all[1].text is not a text."],
  "media that would be an element": [
    (file) => { file.chats[0].all[0].media[0].kind = "script"; },
    "chats[0].all[0].media[0].kind is not image, audio, video, file.",
  ],
  "media elsewhere": [
    (file) => { file.chats[0].all[0].media[0].dataUrl = "https://example.com/a.png"; },
    "chats[0].all[0].media[0].dataUrl is not a data: URL in base64.",
  ],
  "media that cannot be decoded": [
    (file) => { file.chats[0].all[0].media[0].dataUrl = "data:image/png;base64,A"; },
    "chats[0].all[0].media[0].dataUrl is not a data: URL in base64.",
  ],
  "a message that is nothing": [(file) => { file.chats[0].all[0] = null; }, "chats[0].all[0].parent is not an earlier message."],
})) {
  test(`${name} is refused`, () => {
    const file = JSON.parse(exported([chatted()]));
    break_(file);
    assert.throws(() => imported(JSON.stringify(file)), { message: said });
  });
}

test("what is no JSON is refused", () => assert.throws(() => imported("{"), /It is not JSON/));
