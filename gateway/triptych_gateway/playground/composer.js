// Writing a turn: text, files by button, drag and paste, camera, microphone.

import { send, stop } from "./chat.js";
import { button, byId, h, renderOnce, setText } from "./dom.js";
import { attachmentOf, kindOf, record, snapshot, urlOf, whyNoDevices } from "./media.js";
import { change, state, whyNot } from "./state.js";

/** The recording in progress, or null: a promise of the function that ends it. */
let recording = null;

/** Connect the controls. Called once. */
export function wireComposer() {
  const input = byId("message");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  input.addEventListener("input", () => grow(input));
  input.addEventListener("keydown", (event) => {
    // A key that ends a composition of characters does not send. Safari tells it by the code 229.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
      event.preventDefault();
      submit();
    }
  });
  byId("stop").addEventListener("click", stop);
  wireFiles();
  whenAllowed("camera", openCamera);
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
    const why = whyNot(state, kind);
    try {
      if (why) throw new Error(`${file.name || "The file"} was not attached. ${why}`);
      const attachment = await read(file);
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

async function read(file) {
  change((state) => { state.draft.numReading += 1; });
  try {
    return await attachmentOf(file);
  } finally {
    change((state) => { state.draft.numReading -= 1; });
  }
}

function detach(attachment) {
  change((state) => { state.draft.media = state.draft.media.filter((other) => other !== attachment); });
  byId("message").focus();
}

async function toggleRecording() {
  const own = recording;
  try {
    if (own) {
      recording = null;
      change((state) => { state.draft.isRecording = false; });
      const end = await own;
      await attach([await end()]);
    } else {
      const started = (recording = record());
      await started;
      // Nobody clicked again before the browser allowed it.
      if (recording === started) change((state) => { state.draft.isRecording = true; state.notice = "Recording"; });
    }
  } catch (error) {
    recording = null;
    change((state) => { state.notice = `No sound was recorded: ${error.message}`; });
  }
}

function wireCamera() {
  const dialog = byId("camera-dialog");
  const video = byId("camera-video");
  dialog.addEventListener("close", () => {
    showCamera(null);
    change((state) => { state.draft.isCameraOn = false; });
  });
  video.addEventListener("playing", () => change((state) => { state.draft.isCameraOn = true; }));
  byId("camera-cancel").addEventListener("click", () => dialog.close());
  byId("camera-take").addEventListener("click", async () => {
    const file = await snapshot(video);
    if (!dialog.open) return; // by a second click
    dialog.close();
    await attach([file]);
  });
}

async function openCamera() {
  const dialog = byId("camera-dialog");
  dialog.showModal();
  try {
    showCamera(await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } }));
    if (!dialog.open) showCamera(null); // closed before the browser allowed it
  } catch (error) {
    dialog.close();
    change((state) => { state.notice = `The camera does not work: ${error.message}`; });
  }
}

/** Show what a camera sees, or nothing. The camera before it is switched off. */
function showCamera(stream) {
  const video = byId("camera-video");
  video.srcObject?.getTracks().forEach((track) => track.stop());
  video.srcObject = stream;
}

/** Show the draft. */
export function renderComposer(state) {
  const { media, isRecording, isCameraOn } = state.draft;
  renderOnce(byId("attachments"), media, () => media.map(chip));
  byId("attachments").hidden = media.length === 0;
  byId("send").hidden = state.chat.live !== null;
  byId("stop").hidden = state.chat.live === null;
  allow("attach", whyNot(state, "file"), "Attach files");
  allow("camera", whyNot(state, "image") || whyNoDevices(), "Take a picture");
  // A recording can be ended in any case.
  const whyNoSound = isRecording ? "" : whyNot(state, "audio") || whyNoDevices();
  allow("microphone", whyNoSound, isRecording ? "Stop recording" : "Record sound");
  byId("microphone").setAttribute("aria-pressed", String(isRecording));
  byId("camera-take").disabled = !isCameraOn;
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
  const remove = button("×", () => detach(attachment), { class: "remove", "aria-label": `Remove ${attachment.name}` });
  const name = attachment.kind !== "file" && h("span", { class: "chip-name" }, attachment.name);
  return h("li", { class: `chip ${attachment.kind}` }, preview(attachment), name, remove);
}

/** A picture, a player, or a document to download. */
export function preview(attachment) {
  const { kind, name } = attachment;
  const src = urlOf(attachment);
  if (kind === "image") return h("img", { src, alt: name });
  if (kind === "file") return h("a", { class: "document", href: src, download: name }, name);
  return h(kind, { src, controls: true, preload: "metadata", "aria-label": name });
}
