// Writing a turn: text, files by button, drag and paste, camera, microphone.

import { send, stop } from "./chat.js";
import { byId, h, renderOnce, setText } from "./dom.js";
import { attachmentOf, kindOf, record, snapshot, whyNoDevices } from "./media.js";
import { change, modelOf, state, whyNot } from "./state.js";

/** Ends the recording in progress. */
let endRecording = null;

/** Connect the controls. Called once. */
export function wireComposer() {
  const input = byId("message");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  input.addEventListener("input", () => grow(input));
  input.addEventListener("keydown", (event) => {
    // A key that ends a composition of characters does not send.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  byId("stop").addEventListener("click", stop);
  wireFiles();
  whenAllowed("camera", () => change((state) => { state.draft.camera = "starting"; }));
  whenAllowed("microphone", toggleRecording);
  wireCamera();
}

function submit() {
  const input = byId("message");
  if (send(input.value)) {
    input.value = "";
    grow(input);
  }
  input.focus();
}

function grow(input) {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

function whenAllowed(id, act) {
  byId(id).addEventListener("click", ({ currentTarget }) => {
    if (currentTarget.getAttribute("aria-disabled") !== "true") act();
  });
}

function wireFiles() {
  const files = byId("files");
  whenAllowed("attach", () => files.click());
  files.addEventListener("change", async () => {
    await attach(files.files);
    files.value = "";
  });
  document.addEventListener("paste", ({ clipboardData }) => clipboardData.files.length && attach(clipboardData.files));
  const hasFiles = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
  const mark = (isOver) => document.body.classList.toggle("dropping", isOver);
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(true);
  });
  document.addEventListener("dragleave", ({ relatedTarget }) => relatedTarget || mark(false));
  document.addEventListener("drop", (event) => {
    mark(false);
    if (!hasFiles(event)) return;
    event.preventDefault();
    attach(event.dataTransfer.files);
  });
}

/** Add files to the draft. A file that the model does not take is refused with the reason. */
export async function attach(files) {
  for (const file of [...files]) {
    const kind = kindOf(file);
    const why = kind ? whyNot(state, kind) : "It is no picture, sound or video.";
    try {
      if (why) throw new Error(`${file.name || "The file"} was not attached. ${why}`);
      const attachment = await attachmentOf(file);
      change((state) => {
        state.draft.media = [...state.draft.media, attachment];
        Object.assign(state, { notice: "", status: `Attached ${attachment.name}` });
      });
    } catch (error) {
      change((state) => { state.notice = error.message; });
    }
  }
  byId("message").focus();
}

function detach(attachment) {
  URL.revokeObjectURL(attachment.url);
  change((state) => { state.draft.media = state.draft.media.filter((other) => other !== attachment); });
  byId("message").focus();
}

async function toggleRecording() {
  try {
    if (endRecording) {
      const end = endRecording;
      endRecording = null;
      change((state) => { state.draft.recordingSince = null; });
      await attach([await end()]);
    } else {
      endRecording = await record();
      change((state) => { state.draft.recordingSince = Date.now(); state.notice = "Recording"; });
    }
  } catch (error) {
    change((state) => { state.notice = `No sound was recorded: ${error.message}`; });
  }
}

function wireCamera() {
  const dialog = byId("camera-dialog");
  const video = byId("camera-video");
  const close = () => {
    video.srcObject?.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
    change((state) => { state.draft.camera = null; });
  };
  dialog.addEventListener("close", close);
  video.addEventListener("playing", () => change((state) => { state.draft.camera = "on"; }));
  byId("camera-cancel").addEventListener("click", () => dialog.close());
  byId("camera-take").addEventListener("click", async () => {
    const file = await snapshot(video);
    dialog.close();
    await attach([file]);
  });
}

async function openCamera() {
  const dialog = byId("camera-dialog");
  const video = byId("camera-video");
  dialog.showModal();
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    dialog.close();
    change((state) => { state.notice = `The camera does not work: ${error.message}`; });
  }
}

/** Show the draft. */
export function renderComposer(state) {
  const { media, recordingSince, camera } = state.draft;
  renderOnce(byId("attachments"), media, () => media.map(chip));
  byId("attachments").hidden = media.length === 0;
  byId("send").hidden = state.live !== null;
  byId("stop").hidden = state.live === null;
  allow("attach", modelOf(state)?.triptych.modalities.length === 0 ? `${state.model} takes only text.` : "", "Attach files");
  allow("camera", whyNot(state, "image") || whyNoDevices(), "Take a picture");
  allow("microphone", whyNot(state, "audio") || whyNoDevices(), recordingSince ? "Stop recording" : "Record sound");
  byId("microphone").setAttribute("aria-pressed", String(recordingSince !== null));
  byId("files").accept = (modelOf(state)?.triptych.modalities ?? []).map((kind) => `${kind}/*`).join(",");
  byId("camera-take").disabled = camera !== "on";
  if (camera === "starting" && !byId("camera-dialog").open) openCamera();
  setText(byId("notice"), state.notice);
  setText(byId("status"), state.status);
}

function allow(id, why, label) {
  const button = byId(id);
  button.setAttribute("aria-disabled", String(why !== ""));
  button.setAttribute("aria-label", label);
  button.dataset.tip = why || label;
  button.setAttribute("aria-description", why);
}

function chip(attachment) {
  const remove = h(
    "button",
    { type: "button", class: "remove", "aria-label": `Remove ${attachment.name}`, onclick: () => detach(attachment) },
    "×",
  );
  return h("li", { class: `chip ${attachment.kind}` }, preview(attachment), h("span", { class: "chip-name" }, attachment.name), remove);
}

/** A picture, or a player. */
export function preview({ kind, name, url }) {
  if (kind === "image") return h("img", { src: url, alt: name });
  return h(kind, { src: url, controls: true, preload: "metadata", "aria-label": name });
}
