// A chat: messages that know what they follow. A question that is edited and an answer that is asked for again are versions beside
// the first one, so that nothing is lost. `head` is the last message of the conversation that is shown.

/** A chat without messages. */
export function newChat() {
  const random = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id: random, title: "", at: Date.now(), all: [], head: null, live: null };
}

/** Add a message after another one, by default the last that is shown. Its id is its place among all messages of the chat. */
export function append(chat, message, parent = chat.head) {
  Object.assign(message, { id: chat.all.length, parent });
  chat.all.push(message);
  Object.assign(chat, { head: message.id, at: Date.now() });
}

/** Forget the message that was added last, if it is this one. */
export function forget(chat, message) {
  if (chat.all.at(-1) !== message) return;
  chat.all.pop();
  chat.head = message.parent;
}

/** The messages that are shown, oldest first. */
export function pathOf({ all, head }) {
  const path = [];
  for (let id = head; id !== null; id = all[id].parent) path.push(all[id]);
  return path.reverse();
}

/** A message and the other versions of it, oldest first. */
export function versionsOf({ all }, { parent, role }) {
  return all.filter((other) => other.parent === parent && other.role === role);
}

/** Show a version, with the newest messages that follow it. */
export function showVersion(chat, message) {
  let last;
  for (let next = message; next; next = chat.all.findLast(({ parent }) => parent === last.id)) last = next;
  chat.head = last.id;
}

/** A new chat with a copy of the conversation up to a message. */
export function branchOf(chat, message) {
  const branch = newChat();
  for (const { id, parent, ...copy } of structuredClone(pathOf({ all: chat.all, head: message.id }))) append(branch, copy);
  branch.title = chat.title;
  return branch;
}

/** The text of all messages, for the search. */
export function textOf({ all }) {
  return all.map((message) => message.text).join("\n");
}
