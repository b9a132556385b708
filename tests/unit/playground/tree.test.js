// Versions of messages, and branches.

import assert from "node:assert/strict";
import { test } from "node:test";
import { append, branchOf, forget, newChat, pathOf, showVersion, textOf, versionsOf } from "./chats/tree.js";

const say = (role, text) => ({ role, text });
const texts = (chat) => pathOf(chat).map(({ text }) => text);

/** A question with two answers, of which the first one was followed by a question with two versions, one of them answered. */
function forked() {
  const chat = newChat();
  const [question, early, late] = ["q", "q2", "q3"].map((text) => say("user", text));
  const [first, second, last] = ["a1", "a2", "a3"].map((text) => say("assistant", text));
  append(chat, question);
  append(chat, first);
  append(chat, early);
  append(chat, late, early.parent);
  append(chat, last);
  append(chat, second, question.id);
  return { chat, question, first, second, early, late, last };
}

test("a message follows the last one that is shown", () => {
  const { chat } = forked();
  assert.deepEqual(texts(chat), ["q", "a2"]);
  append(chat, say("user", "more"));
  assert.deepEqual(texts(chat), ["q", "a2", "more"]);
});

test("another version is shown with the newest messages after it", () => {
  const { chat, first, second, early } = forked();
  assert.deepEqual(versionsOf(chat, second), [first, second]);
  showVersion(chat, first);
  assert.deepEqual(texts(chat), ["q", "a1", "q3", "a3"]);
  showVersion(chat, early);
  assert.deepEqual(texts(chat), ["q", "a1", "q2"]);
});

test("a branch has the conversation up to a message, and nothing of it is shared", () => {
  const { chat, first, late } = forked();
  const branch = branchOf(chat, late);
  assert.deepEqual(texts(branch), ["q", "a1", "q3"]);
  assert.notEqual(branch.id, chat.id);
  pathOf(branch)[1].text = "changed";
  assert.equal(first.text, "a1");
});

test("only the message that was added last is forgotten", () => {
  const { chat, question, first, second } = forked();
  forget(chat, first);
  assert.equal(chat.all.length, 6);
  forget(chat, second);
  assert.deepEqual([chat.all.length, chat.head], [5, question.id]);
});

test("the search reads all versions", () => assert.equal(textOf(forked().chat), "q\na1\nq2\nq3\na3\na2"));
