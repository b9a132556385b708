// A dialog that asks for a name, or whether something is meant.

import { byId, setText } from "./dom.js";

/**
 * Ask for a text, or without a `label` only for consent. Gives the text, which is empty for consent, or null if it was cancelled.
 *
 * @param {{ title: string, action: string, label?: string, value?: string }} question
 */
export function ask({ title, action, label = "", value = "" }) {
  const dialog = byId("ask-dialog");
  const field = byId("ask");
  setText(byId("ask-title"), title);
  setText(byId("ask-label"), label);
  setText(byId("ask-action"), action);
  field.parentElement.hidden = label === "";
  field.required = label !== "";
  field.value = value;
  dialog.showModal();
  field.select();
  return new Promise((resolve) => {
    const form = byId("ask-form");
    const wired = new AbortController();
    const end = (answer) => {
      wired.abort();
      dialog.close();
      resolve(answer);
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      end(field.value.trim());
    }, wired);
    byId("ask-cancel").addEventListener("click", () => end(null), wired);
    dialog.addEventListener("cancel", () => end(null), wired);
  });
}
