// Files for the model: pictures, sounds, videos, documents. What the gateway does not read is converted in the browser.

/** Sound formats that the gateway takes as they are. */
const SOUNDS = {
  "audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3",
  "audio/flac": "flac", "audio/x-flac": "flac", "audio/ogg": "ogg",
};
const PICTURES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
/** Sample rate of converted sounds, in Hz: what speech models hear. */
const SAMPLE_RATE = 16000;

/** image, audio, video, or file: any other one, which is a document. */
export function kindOf(file) {
  const [kind] = file.type.split("/");
  return ["image", "audio", "video"].includes(kind) ? kind : "file";
}

/** An attachment: { kind, name, format, dataUrl }. Throws Error if the file cannot be read. */
export async function attachmentOf(file) {
  const kind = kindOf(file);
  let blob = file;
  let format = null;
  if (kind === "file") await checkDocument(file);
  if (kind === "image" && !PICTURES.includes(file.type)) blob = await pngOf(file);
  if (kind === "audio") {
    format = SOUNDS[file.type.split(";")[0]] ?? null;
    if (format === null || file.type.includes("opus")) [blob, format] = [await wavOf(file), "wav"];
  }
  const name = file.name || { image: "Picture", audio: "Sound", video: "Video", file: "Document" }[kind];
  return { kind, name, format, dataUrl: await dataUrlOf(blob) };
}

/** Throws Error unless the gateway reads the file: text in UTF-8 or PDF. */
async function checkDocument(file) {
  const bytes = new Uint8Array(await file.arrayBuffer().catch(unreadable(file.name)));
  if (bytes.length === 0) throw new Error(`${file.name} is empty.`);
  if (new TextDecoder().decode(bytes.subarray(0, 5)) === "%PDF-") return;
  try {
    if (!new TextDecoder("utf-8", { fatal: true }).decode(bytes).includes("\0")) return;
  } catch {
    // Not UTF-8.
  }
  throw new Error(`${file.name} was not attached. It is neither a picture, a sound, a video, text in UTF-8, nor PDF.`);
}

/** attachment -> address of its content */
const urls = new Map();

/** An address of an attachment's content, for previews. */
export function urlOf(attachment) {
  if (!urls.has(attachment)) urls.set(attachment, URL.createObjectURL(blobOf(attachment.dataUrl)));
  return urls.get(attachment);
}

/** Give the memory of previews back, except those of some attachments. */
export function releaseUrls(kept) {
  for (const [attachment, url] of urls) {
    if (kept.includes(attachment)) continue;
    URL.revokeObjectURL(url);
    urls.delete(attachment);
  }
}

function blobOf(dataUrl) {
  const [head, content] = dataUrl.split(",");
  return new Blob([Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0))], { type: /^data:([^;]*)/.exec(head)[1] });
}

function dataUrlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("The file cannot be read."));
    reader.readAsDataURL(blob);
  });
}

async function pngOf(file) {
  const bitmap = await createImageBitmap(file).catch(unreadable(file.name || "this picture"));
  return canvasBlob(bitmap, bitmap.width, bitmap.height, "image/png");
}

/** What a video element shows, as a JPEG file. */
export async function snapshot(video) {
  const blob = await canvasBlob(video, video.videoWidth, video.videoHeight, "image/jpeg");
  return new File([blob], "Camera picture", { type: "image/jpeg" });
}

function canvasBlob(source, width, height, type) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  canvas.getContext("2d").drawImage(source, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, type, 0.92));
}

/** Any sound that the browser can play, as a WAV file: one channel, 16 bits, 16 kHz. */
async function wavOf(file) {
  const context = new OfflineAudioContext(1, 1, SAMPLE_RATE);
  const sound = await context.decodeAudioData(await file.arrayBuffer()).catch(unreadable(file.name || "this sound"));
  const samples = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel += 1) {
    sound.getChannelData(channel).forEach((value, index) => { samples[index] += value / sound.numberOfChannels; });
  }
  const pcm = Int16Array.from(samples, (value) => Math.max(-1, Math.min(1, value)) * 0x7fff);
  const pieces = [
    "RIFF", Uint32Array.of(36 + pcm.byteLength),
    "WAVEfmt ", Uint32Array.of(16), // bytes of what describes the sound:
    Uint16Array.of(1, 1), // PCM, channels
    Uint32Array.of(SAMPLE_RATE, SAMPLE_RATE * 2), // and bytes per second
    Uint16Array.of(2, 16), // bytes and bits per sample
    "data", Uint32Array.of(pcm.byteLength), pcm,
  ];
  return new Blob(pieces, { type: "audio/wav" });
}

/** What a promise of a file's content does when it fails. */
function unreadable(name) {
  return () => { throw new Error(`The browser cannot read ${name}.`); };
}

/** Record the microphone. Returns a function that ends the recording and gives it as a file. */
export async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const pieces = [];
  recorder.ondataavailable = ({ data }) => pieces.push(data);
  const ended = new Promise((resolve) => { recorder.onstop = resolve; });
  recorder.start();
  return async () => {
    recorder.stop();
    await ended;
    stream.getTracks().forEach((track) => track.stop());
    // Not its own type: an Ogg file of a browser holds Opus, which is converted.
    return new File(pieces, "Recording", { type: "audio/webm" });
  };
}

/** Why the browser gives neither camera nor microphone, or an empty string. */
export function whyNoDevices() {
  return navigator.mediaDevices ? "" : "The browser allows this only on https or on this machine.";
}
