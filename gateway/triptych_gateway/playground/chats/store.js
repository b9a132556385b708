// The chats of this browser, in its IndexedDB: what the list needs of each in one store, the messages in another.

const LIST = "chats";
const MESSAGES = "messages";
let opening = null;

function database() {
  opening ??= done(Object.assign(indexedDB.open("triptych", 1), {
    onupgradeneeded: ({ target }) => [LIST, MESSAGES].forEach((name) => target.result.createObjectStore(name, { keyPath: "id" })),
  }));
  return opening;
}

/** The result of a request. Rejects with the browser's error. */
function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Change both stores, or neither. */
async function write(change) {
  const transaction = (await database()).transaction([LIST, MESSAGES], "readwrite");
  change(transaction.objectStore(LIST), transaction.objectStore(MESSAGES));
  await new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** What is listed of all chats: { id, title, at, text }, in no order. */
export async function list() {
  return done((await database()).transaction(LIST).objectStore(LIST).getAll());
}

/** A chat: { id, title, at, head, all }. Undefined if it is not there. */
export async function load(id) {
  const transaction = (await database()).transaction([LIST, MESSAGES]);
  const [listed, content] = await Promise.all([LIST, MESSAGES].map((name) => done(transaction.objectStore(name).get(id))));
  return listed && { id, title: listed.title, at: listed.at, head: content.head, all: content.all };
}

/** Write a chat, and what is listed of it. */
export async function save({ id, title, at, head, all }, text) {
  await write((chats, messages) => {
    chats.put({ id, title, at, text });
    messages.put({ id, head, all });
  });
}

/** Delete a chat. */
export async function remove(id) {
  await write((...stores) => stores.forEach((store) => store.delete(id)));
}

/** Delete all chats. */
export async function removeAll() {
  await write((...stores) => stores.forEach((store) => store.clear()));
}
