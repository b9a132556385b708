// The chats of this browser, in its IndexedDB: what the list needs of each in one store, the messages in another. Each message is a
// record, so that an answer is written without the attachments before it.

const LIST = "chats";
const MESSAGES = "messages";
let opening = null;

function database() {
  opening ??= done(Object.assign(indexedDB.open("triptych", 1), {
    onupgradeneeded: ({ target: { result } }) => {
      result.createObjectStore(LIST, { keyPath: "id" });
      result.createObjectStore(MESSAGES, { keyPath: ["chat", "id"] });
    },
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
  const [listed, messages] = await Promise.all([
    done(transaction.objectStore(LIST).get(id)),
    done(transaction.objectStore(MESSAGES).getAll(messagesOf(id))),
  ]);
  if (!listed) return undefined;
  const { title, at, head } = listed;
  return { id, title, at, head, all: messages.map(({ chat: _, ...message }) => message) };
}

/** Write what is listed of a chat: { id, title, at, head, text }, and those of its messages that changed. */
export async function save(listed, changed) {
  await write((chats, messages) => {
    chats.put(listed);
    for (const message of changed) messages.put({ ...message, chat: listed.id });
  });
}

/** Delete a chat. */
export async function remove(id) {
  await write((chats, messages) => {
    chats.delete(id);
    messages.delete(messagesOf(id));
  });
}

/** The keys of all messages of a chat. */
function messagesOf(id) {
  return IDBKeyRange.bound([id], [id, Infinity]);
}

/** Delete all chats. */
export async function removeAll() {
  await write((...stores) => stores.forEach((store) => store.clear()));
}
