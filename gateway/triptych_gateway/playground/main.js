// The page: connects the controls, renders the state.

import { findModels } from "./api.js";
import { stop } from "./chat.js";
import { startChat, wireChats } from "./chats/chats.js";
import { renderList, wireList } from "./chats/list.js";
import { renderComposer, wireComposer } from "./composer.js";
import { renderConversation, wireConversation } from "./conversation/conversation.js";
import { byId, h, renderOnce, setText } from "./dom.js";
import { followLoad, renderLoad } from "./insight/load.js";
import { renderTimeline } from "./insight/timeline.js";
import { wireTokens } from "./insight/tokens.js";
import { keepSettings, readKept } from "./presets.js";
import { renderSettings, wireSettings } from "./settings.js";
import { change, onChange, setKey, whyNoChat, whyNot } from "./state.js";

const PANES = ["chats", "chat", "settings", "insight"];
/** Those that share the left side of a wide page. */
const SIDES = ["chats", "settings"];

/** As in style.css. */
const isWide = matchMedia("(min-width: 1081px)");

/** Show the whole state. */
function render(state) {
  renderHeader(state);
  renderKeyDialog(state);
  renderList(state);
  renderConversation(state);
  renderComposer(state);
  renderSettings(state);
  renderTimeline(state);
  renderLoad(state);
}

function renderHeader({ models, model, pane, side, key, ...state }) {
  const select = byId("model");
  renderOnce(select, models, () => models.map(({ id }) => h("option", { value: id }, id)));
  if (select.value !== model) select.value = model; // setting the same would disturb a list that is open
  const trouble = state.trouble || whyNoChat({ models, model });
  byId("trouble").hidden = trouble === "";
  setText(byId("trouble"), trouble);
  setText(byId("key-button"), key ? "Key ✓" : "Key");
  Object.assign(document.body.dataset, { pane, side });
  const shown = isWide.matches ? side : pane;
  for (const name of PANES) byId(`tab-${name}`).setAttribute("aria-pressed", String(name === shown));
  byId("try-picture").hidden = whyNot({ models, model }, "image") !== "";
}

function renderKeyDialog({ keyWanted, key }) {
  const dialog = byId("key-dialog");
  if (keyWanted === null) {
    dialog.close();
    return;
  }
  setText(byId("key-why"), keyWanted);
  if (dialog.open) return;
  byId("key").value = key;
  dialog.showModal();
}

function wireKeyDialog() {
  const dialog = byId("key-dialog");
  const want = (why) => change((state) => { state.keyWanted = why; });
  byId("key-button").addEventListener("click", () => want(""));
  byId("key-cancel").addEventListener("click", () => want(null));
  // Escape. Not at `close`: that comes after the dialog was closed, and a refusal may have asked for the key again by then.
  dialog.addEventListener("cancel", () => want(null));
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(byId("key").value.trim());
    findModels();
  });
}

function wireHeader() {
  byId("model").addEventListener("change", ({ target }) => {
    change((state) => { state.model = target.value; });
    keepSettings();
  });
  byId("new").addEventListener("click", () => {
    startChat();
    byId("message").focus();
  });
  isWide.addEventListener("change", () => change(() => {}));
  for (const name of PANES) {
    byId(`tab-${name}`).addEventListener("click", () => change((state) => {
      state.pane = name;
      if (SIDES.includes(name)) state.side = name;
    }));
  }
}

/** Copy a text. Says how that went. */
async function copied(text) {
  if (!navigator.clipboard) return "The browser copies only on https or on this machine.";
  try {
    await navigator.clipboard.writeText(text);
    return "Copied";
  } catch (error) {
    return `The browser did not copy: ${error.message}`;
  }
}

function wireDocument() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open]")) stop();
  });
  document.addEventListener("click", async ({ target }) => {
    const text = target.dataset?.copy;
    if (text === undefined) return;
    const notice = await copied(text);
    change((state) => { state.notice = notice; });
  });
  for (const button of document.querySelectorAll("[data-prompt]")) {
    button.addEventListener("click", () => {
      const input = byId("message");
      input.value = button.dataset.prompt;
      input.focus();
    });
  }
  byId("try-picture").addEventListener("click", () => byId("files").click());
}

readKept();
onChange(render);
wireHeader();
wireKeyDialog();
wireConversation();
wireComposer();
wireSettings();
wireTokens(byId("log"));
wireDocument();
wireList();
wireChats();
change(() => {});
findModels();
followLoad();
