// The list of chats: search, rename, delete, export and import.

import { ask } from "../dialog.js";
import { button, byId, count, h, renderOnce, setText } from "../dom.js";
import { change, state } from "../state.js";
import { exportChats, importChats, remove, rename } from "./chats.js";

/** Connect the controls. Called once. */
export function wireList() {
  byId("search").addEventListener("input", ({ target }) => change((state) => { state.search = target.value; }));
  byId("export").addEventListener("click", async () => download("triptych-chats", await exportChats()));
  byId("delete-all").addEventListener("click", async () => {
    const title = `Delete all ${count(state.chats.length)} chats of this browser?`;
    if ((await ask({ title, action: "Delete all" })) !== null) await remove();
  });
  const file = byId("import-file");
  byId("import").addEventListener("click", () => file.click());
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    const said = await take(chosen);
    file.value = "";
    change((state) => { state.chatsNotice = said; });
  });
}

/** Import a file. Says how that went. */
async function take(file) {
  try {
    const number = await importChats(await file.text());
    return `Imported ${count(number)} ${number === 1 ? "chat" : "chats"} of ${file.name}.`;
  } catch (error) {
    return `${file.name} was not imported. ${error.message}`;
  }
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: url, download: `${name}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The chats that were found the last time, and in which. */
let found = [];
let searched = {};

/** Show the chats that have all words of the search. */
export function renderList({ chats, chat, search, chatsNotice }) {
  const list = byId("chats");
  if (searched.chats !== chats || searched.search !== search) {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    found = words.length ? chats.filter((one) => has(one, words)) : chats;
    searched = { chats, search };
  }
  const focused = list.contains(document.activeElement) && document.activeElement.closest("li").dataset.chat;
  const key = JSON.stringify([chat.id, found.map(({ id, title }) => [id, title])]);
  const isSame = list.renderedKey === key;
  renderOnce(list, key, () => found.map((one) => row(one, one.id === chat.id)));
  // What had the focus is another node now.
  if (focused && !isSame) (list.querySelector(`[data-chat="${focused}"] a`) ?? byId("search")).focus();
  const none = chats.length ? "No chat has these words." : "Chats are listed here. They stay in this browser.";
  setText(byId("chats-status"), chatsNotice || (found.length ? "" : none));
  for (const id of ["export", "delete-all"]) byId(id).disabled = chats.length === 0;
}

function has({ title, text }, words) {
  const all = `${title}\n${text}`.toLowerCase();
  return words.every((word) => all.includes(word));
}

function row({ id, title, at }, isOpen) {
  const label = (what) => ({ "aria-label": `${what} ${title}` });
  const link = h("a", { href: `#chat-${id}`, "aria-current": isOpen && "page", title: new Date(at).toLocaleString() }, title);
  const renamed = async () => {
    const name = await ask({ title: "Rename the chat", label: "Title", value: title, action: "Rename" });
    if (name) await rename(id, name);
  };
  const removed = async () => {
    if ((await ask({ title: `Delete “${title}”?`, action: "Delete" })) !== null) await remove(id);
  };
  return h(
    "li",
    { "data-chat": id, class: isOpen ? "open" : null },
    link,
    h(
      "span",
      { class: "actions" },
      button("Rename", renamed, label("Rename")),
      button("Export", async () => download("triptych-chat", await exportChats([id])), label("Export")),
      button("Delete", removed, label("Delete")),
    ),
  );
}
