// Chats as JSON. A file may be anybody's, so only what a chat can have is taken from it, and only of its own type.

import { newChat } from "./tree.js";

const FORMAT = "triptych-chats";
const MEDIA = ["image", "audio", "video", "file"];
const DATA_URL = /^data:[^,]*;base64,[A-Za-z0-9+/]*={0,2}$/;

/** The text of a file with chats. */
export function exported(chats) {
  const plain = chats.map((chat, index) => chatOf(chat, index)).map(({ title, at, head, all }) => ({ title, at, head, all }));
  return JSON.stringify({ format: FORMAT, version: 1, chats: plain }, null, 1);
}

/** The chats of a file, with ids of their own, so that they replace none. Throws Error. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`It is not JSON: ${error.message}`);
  }
  if (file?.format !== FORMAT) throw new Error("It was not exported by this page.");
  if (file.version !== 1) throw new Error(`Its version is ${JSON.stringify(file.version)}; this page reads version 1.`);
  return arrayOf(file.chats, "chats").map(chatOf);
}

function chatOf(value, index) {
  const at = `chats[${index}]`;
  const all = arrayOf(value?.all, `${at}.all`).map((message, id) => messageOf(message, id, `${at}.all[${id}]`));
  const head = all.length ? placeOf(value.head, all.length, `${at}.head`) : null;
  return { ...newChat(), title: textOf(value.title, `${at}.title`), at: numberOf(value.at, `${at}.at`), all, head };
}

function messageOf(value, id, at) {
  // A message follows an earlier one, so that no path is a circle.
  const parent = value?.parent === null ? null : placeOf(value?.parent, id, `${at}.parent`);
  const text = textOf(value.text, `${at}.text`);
  if (value.role === "user") {
    return { id, parent, role: "user", version: 0, text, media: arrayOf(value.media, `${at}.media`).map(mediaOf(`${at}.media`)) };
  }
  if (value.role !== "assistant") throw wrong(`${at}.role`, "user or assistant");
  const sentAt = numberOf(value.sentAt, `${at}.sentAt`);
  const numTokens = orNull(numberOf, value.usage?.completion_tokens, `${at}.usage.completion_tokens`);
  // Without the timeline and the log probabilities, which are large.
  return {
    id, parent, role: "assistant", version: 0, live: false, text, reasoning: textOf(value.reasoning, `${at}.reasoning`),
    model: textOf(value.model, `${at}.model`), calls: arrayOf(value.calls, `${at}.calls`).map(callOf(`${at}.calls`)),
    finish: orNull(textOf, value.finish, `${at}.finish`), error: orNull(textOf, value.error, `${at}.error`),
    tokens: [], showTokens: true, usage: numTokens === null ? null : { completion_tokens: numTokens }, media: [], timings: null,
    sentAt, firstAt: orNull(numberOf, value.firstAt, `${at}.firstAt`), endAt: orNull(numberOf, value.endAt, `${at}.endAt`),
  };
}

function mediaOf(place) {
  return (value, index) => {
    const at = `${place}[${index}]`;
    if (!MEDIA.includes(value?.kind)) throw wrong(`${at}.kind`, MEDIA.join(", "));
    if (typeof value.dataUrl !== "string" || !isDataUrl(value.dataUrl)) throw wrong(`${at}.dataUrl`, "a data: URL in base64");
    const { kind, dataUrl } = value;
    return { kind, name: textOf(value.name, `${at}.name`), format: orNull(textOf, value.format, `${at}.format`), dataUrl };
  };
}

/** Whether the browser decodes it. Base64 has four letters for three bytes. */
function isDataUrl(text) {
  return DATA_URL.test(text) && (text.length - text.indexOf(",") - 1) % 4 === 0;
}

function callOf(place) {
  const names = ["id", "name", "arguments", "result"];
  return (value, index) => Object.fromEntries(names.map((name) => [name, textOf(value?.[name], `${place}[${index}].${name}`)]));
}

function arrayOf(value, at) {
  if (!Array.isArray(value)) throw wrong(at, "a list");
  return value;
}

function textOf(value, at) {
  if (typeof value !== "string") throw wrong(at, "a text");
  return value;
}

function numberOf(value, at) {
  if (!Number.isFinite(value)) throw wrong(at, "a number");
  return value;
}

function placeOf(value, end, at) {
  if (!Number.isInteger(value) || value < 0 || value >= end) throw wrong(at, "an earlier message");
  return value;
}

function orNull(read, value, at) {
  return value === null || value === undefined ? null : read(value, at);
}

function wrong(at, what) {
  return new Error(`${at} is not ${what}.`);
}
