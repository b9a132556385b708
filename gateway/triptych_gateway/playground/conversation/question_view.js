// A message of the user, and the field to edit it.

import { choose, resend } from "../chat.js";
import { branch } from "../chats/chats.js";
import { versionsOf } from "../chats/tree.js";
import { preview } from "../composer.js";
import { button, h, renderOnce } from "../dom.js";
import { change } from "../state.js";

/** The nodes of a question. */
export function questionView({ text, media }) {
  const files = media.map((item) => h("li", { class: item.kind }, preview(item)));
  const view = { text: h("p", {}, text), edit: h("form", { class: "edit" }), acts: h("div", { class: "acts" }) };
  view.node = h(
    "article",
    { class: "user", "aria-label": "You" },
    media.length > 0 && h("ul", { class: "media" }, files),
    view.text, view.edit, view.acts,
  );
  return view;
}

/** Show whether it is edited, and which version it is. */
export function updateQuestion(view, message, { chat, editing }) {
  const isEdited = editing === message.id;
  view.text.hidden = isEdited || message.text === "";
  view.edit.hidden = !isEdited;
  view.acts.hidden = isEdited;
  renderOnce(view.edit, isEdited, () => (isEdited ? editor(message) : []));
  const versions = versionsOf(chat, message);
  const isBusy = chat.live !== null;
  renderOnce(view.acts, `${isBusy} ${versions.length}`, () => [
    ...versionButtons(message, versions, isBusy),
    message.text && button("Copy", null, { "data-copy": message.text }),
    !isBusy && button("Edit", () => change((state) => { state.editing = message.id; })),
  ]);
}

function editor(message) {
  const field = h("textarea", { rows: Math.min(message.text.split("\n").length + 1, 12), "aria-label": "Edit the message" });
  field.value = message.text;
  const cancel = () => change((state) => { state.editing = null; });
  const submit = (event) => {
    event.preventDefault();
    resend(message, field.value);
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") cancel();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) submit(event);
  });
  requestAnimationFrame(() => field.focus());
  const send = button("Send", submit, { class: "primary" });
  return [field, h("p", { class: "actions" }, button("Cancel", cancel), send)];
}

/** Buttons that show the version before a message, and the one after it. */
export function versionButtons(message, versions, isBusy) {
  if (versions.length < 2) return [];
  const at = versions.indexOf(message);
  const to = (label, sign, version) =>
    button(sign, () => choose(version), { "aria-label": label, disabled: isBusy || version === undefined });
  return [
    h(
      "span",
      { class: "versions" },
      to("Version before", "‹", versions[at - 1]),
      h("span", { "aria-label": `Version ${at + 1} of ${versions.length}`, role: "img" }, `${at + 1}/${versions.length}`),
      to("Version after", "›", versions[at + 1]),
    ),
  ];
}

/** A button that begins a chat with a copy of the conversation up to a message. */
export function branchButton(message) {
  return button("Branch", () => branch(message), { "aria-description": "Begin a chat with a copy of this one up to here" });
}
