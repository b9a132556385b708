// Opening, keeping, renaming, deleting the chats of this browser. The page's address names the one that is open.

import { change, state } from "../state.js";
import * as store from "./store.js";
import { exported, imported } from "./transfer.js";
import { branchOf, newChat, textOf } from "./tree.js";

/** Chats that were left while they were being answered: id -> chat. */
const left = new Map();
/** Ids of chats that were deleted while they were being answered. */
const deleted = new Set();
/** message -> the version of it that is in the store */
const written = new WeakMap();
const NOT_KEPT = "This chat is not kept";
const CLOSED = "The page was closed before the end of this answer.";

/** Find the chats, and open the one that the address names. Called once. */
export async function wireChats() {
  addEventListener("hashchange", followAddress);
  // Another tab may have changed them.
  document.addEventListener("visibilitychange", () => document.hidden || findChats());
  await findChats();
  await followAddress();
}

async function findChats() {
  const chats = await attempt("The chats of this browser cannot be read", store.list);
  if (chats) change((state) => { state.chats = chats.sort((one, other) => other.at - one.at); });
}

function addressed() {
  return /^#chat-(\w+)$/.exec(location.hash)?.[1];
}

async function followAddress() {
  const id = addressed();
  if (id && id !== state.chat.id) await open(id);
  else if (location.hash === "" && state.chat.all.length) show(newChat());
}

async function open(id) {
  const chat = await whole(id);
  if (addressed() !== id) return; // another one was opened meanwhile
  left.delete(id);
  if (chat) {
    show(chat);
  } else {
    startChat();
    change((state) => { state.notice = "This browser has no such chat."; });
  }
}

async function read(id) {
  const chat = await store.load(id);
  for (const message of chat?.all ?? []) {
    if (message.live) Object.assign(message, { live: false, error: CLOSED });
    else written.set(message, message.version);
  }
  return chat && { ...chat, live: null };
}

/** Show a chat. One that is being answered goes on. */
function show(chat) {
  if (state.chat.live) left.set(state.chat.id, state.chat);
  change((state) => Object.assign(state, { chat, editing: null, shown: null, notice: "", status: "", pane: "chat" }));
}

/** Begin a new chat. */
export function startChat() {
  history.pushState(null, "", location.pathname + location.search);
  show(newChat());
}

/** Write a chat, unless it was deleted. */
export async function keep(chat) {
  if (deleted.has(chat.id)) return;
  if (chat === state.chat) history.replaceState(null, "", `#chat-${chat.id}`);
  await attempt(NOT_KEPT, () => write(chat));
}

/** Write what changed of a chat, and list it. Throws the browser's error. */
async function write(chat) {
  chat.title ||= titleOf(chat.all[0]);
  const { id, title, at, head } = chat;
  const listed = { id, title, at, head, text: textOf(chat) };
  const changed = chat.all.filter((message) => written.get(message) !== message.version);
  const versions = changed.map(({ version }) => version);
  await store.save(listed, changed);
  changed.forEach((message, index) => written.set(message, versions[index]));
  change((state) => {
    const others = state.chats.filter((other) => other.id !== id);
    state.chats = deleted.has(id) ? others : [listed, ...others].sort((one, other) => other.at - one.at);
  });
}

/** The first words of a chat. */
function titleOf(question) {
  return question?.text.trim().slice(0, 80) || question?.media[0]?.name || "Chat";
}

/** Rename a chat. */
export async function rename(id, title) {
  const chat = await whole(id);
  if (chat) await attempt(NOT_KEPT, () => write(Object.assign(chat, { title })));
}

/** Delete a chat, or all of them if `id` is null. */
export async function remove(id = null) {
  const isGone = (chat) => id === null || chat.id === id;
  const open = [state.chat, ...left.values()].filter(isGone);
  for (const chat of open) {
    deleted.add(chat.id);
    left.delete(chat.id);
    chat.live?.abort();
  }
  await attempt("The chat is not deleted", () => (id === null ? store.removeAll() : store.remove(id)));
  change((state) => { state.chats = state.chats.filter((chat) => !isGone(chat)); });
  if (isGone(state.chat)) startChat();
}

/** Begin a chat with a copy of the conversation up to a message. */
export function branch(message) {
  const chat = branchOf(state.chat, message);
  history.pushState(null, "", `#chat-${chat.id}`);
  show(chat);
  keep(chat);
  change((state) => { state.notice = "A copy of the chat up to here"; });
}

/** The text of a file with a chat, or with all. */
export async function exportChats(ids = state.chats.map((chat) => chat.id)) {
  const chats = await Promise.all(ids.map(whole));
  return exported(chats.filter(Boolean));
}

/** Add the chats of a file. Gives their number. Throws Error if it is no such file, or if the browser does not keep them. */
export async function importChats(text) {
  const chats = imported(text);
  for (const chat of chats) await write(chat);
  return chats.length;
}

/** A chat as it is now, with its messages. */
async function whole(id) {
  if (id === state.chat.id) return state.chat;
  return left.get(id) ?? attempt("The chat cannot be read", () => read(id));
}

/** Do something with the store. If it fails, the page says so, and goes on without. */
async function attempt(what, act) {
  try {
    return await act();
  } catch (error) {
    change((state) => { state.notice = `${what}: ${error.message}`; });
    return undefined;
  }
}
