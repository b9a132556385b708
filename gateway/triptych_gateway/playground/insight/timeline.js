// The timeline of an answer: where its time went, in the services and per media item.

import { tokensPerSecond } from "../answer.js";
import { byId, count, duration, h, renderOnce } from "../dom.js";
import { shownAnswer } from "../state.js";

/** Where the encoder found an item: a word, and its tooltip. */
const TIERS = {
  hit: ["cache hit", "The encoder had it in its memory."],
  shared: ["shared store", "The encoder found it in the store that encoders share."],
  joined: ["joined", "Another request was encoding it already."],
  miss: ["cache miss", "The encoder computed it."],
};
const SOURCES = {
  encoder: "fetched from the encoder",
  engine: "in the engine's memory",
  prefix_cache: "in the prefix cache, so no embeddings were needed",
};
/** Differences of clocks and rounding, in milliseconds, are no stage. */
const LEAST_MS = 0.05;

/** Show the timeline of the chosen answer. */
export function renderTimeline(state) {
  const answer = shownAnswer(state);
  const key = answer ? `${answer.id} ${answer.live ? "live" : answer.version}` : "none";
  renderOnce(byId("timeline"), key, () => (answer ? content(answer) : hint("Each answer shows here where its time went.")));
}

function hint(text) {
  return h("p", { class: "muted" }, text);
}

function content(answer) {
  if (answer.live) return hint("The answer is being received.");
  if (!answer.timings) return hint("This answer has no timings.");
  const stages = stagesOf(answer);
  const total = Math.max(answer.endAt - answer.sentAt, sum(stages));
  return [
    facts(answer),
    row("Request", [stages], total, duration(total), axis(total)),
    ...answer.media.map((item) => mediaRow(item, answer.media, answer.timings, total)),
  ];
}

function facts({ usage, timings, firstAt, sentAt, ...answer }) {
  const speed = tokensPerSecond({ usage, timings });
  const pairs = [
    ["First token", firstAt === null ? "none" : duration(firstAt - sentAt)],
    ["Output", `${count(usage?.completion_tokens ?? 0)} tokens${speed ? `, ${speed.toFixed(0)}/s` : ""}`],
    ["Prompt", `${count(usage?.prompt_tokens ?? 0)} tokens, ${count(usage?.prompt_tokens_details?.cached_tokens ?? 0)} cached`],
    timings.num_preemptions > 0 && ["Preempted", `${timings.num_preemptions} times`],
  ].filter(Boolean);
  return h("dl", { class: "pairs" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** The stages of a request, one after the other: [name, class, ms, ms from the start]. */
function stagesOf({ timings, sentAt, endAt }) {
  const stages = [
    ["Preprocess", "preprocess", timings.preprocess_ms],
    ["Queue", "queue", timings.queue_ms],
    ["Prefill", "prefill", timings.prefill_ms],
    ["Decode", "decode", timings.decode_ms],
  ];
  const rest = endAt - sentAt - stages.reduce((ms, stage) => ms + stage[2], 0);
  return placed([...stages, ["Network, gateway, browser", "other", Math.max(rest, 0)]], 0);
}

function placed(stages, start) {
  let at = start;
  return stages.map(([name, kind, ms]) => {
    const stage = { name, kind, ms, at };
    at += ms;
    return stage;
  }).filter(({ ms }) => ms >= LEAST_MS);
}

function sum(stages) {
  return stages.reduce((ms, stage) => ms + stage.ms, 0);
}

function mediaRow(item, media, timings, total) {
  const kind = item.modality ?? "item";
  const same = media.filter((other) => other.modality === item.modality);
  const number = same.length > 1 ? ` ${same.indexOf(item) + 1}` : "";
  // Where the encoder's stages begin is not reported: they are drawn from the end of preprocessing.
  const stages = placed([
    ["Transfer", "transfer", item.transfer_ms],
    ["Encoder's queue", "queue", item.queue_ms],
    ["Read the file", "read", item.decode_ms],
    ["Resize, normalise", "preprocess", item.preprocess_ms],
    ["Encode", "encode", item.encode_ms],
  ], timings.preprocess_ms);
  const wait = placed([["Engine waited for it", "wait", item.fetch_ms]], timings.preprocess_ms);
  const [tier, title] = TIERS[item.encoder_cache] ?? [];
  const about = [`${count(item.num_tokens)} tokens`, SOURCES[item.source]].filter(Boolean).join(", ");
  const badge = tier && h("span", { class: `badge ${item.encoder_cache}`, title }, tier);
  const name = `${kind[0].toUpperCase()}${kind.slice(1)}${number}`;
  return row([name, " ", badge], [stages, wait], total, duration(sum(stages)), h("p", { class: "muted small" }, about));
}

/** A row: what it is, how long it took, a track with a lane per list of stages, a note, and what the colours are. */
function row(label, lanes, total, took, note) {
  const text = lanes.flat().map(({ name, ms }) => `${name} ${duration(ms)}`).join(", ");
  return h(
    "div",
    { class: "lane-row" },
    h("p", { class: "lane-head" }, h("span", {}, label), h("span", { class: "number" }, took)),
    h("div", { class: "track", role: "img", "aria-label": text }, lanes.filter((lane) => lane.length).map((lane) => laneOf(lane, total))),
    note,
    legend(lanes.flat()),
  );
}

function laneOf(stages, total) {
  return h("div", { class: `lane ${stages[0].kind === "wait" ? "thin" : ""}` }, stages.map(({ name, kind, ms, at }) => {
    const bar = h("span", { class: `stage ${kind}`, title: `${name}: ${duration(ms)}` });
    bar.style.left = `${(Math.min(at, total) / total) * 100}%`;
    bar.style.width = `${(Math.min(ms, Math.max(total - at, 0)) / total) * 100}%`;
    return bar;
  }));
}

function axis(total) {
  return h("p", { class: "axis", "aria-hidden": "true" }, h("span", {}, "0"), h("span", {}, duration(total / 2)), h("span", {}, duration(total)));
}

function legend(stages) {
  const entries = stages.map(({ name, kind, ms }) =>
    h("li", {}, h("span", { class: `swatch ${kind}` }), h("span", {}, name), h("span", { class: "number" }, duration(ms))));
  return h("ul", { class: "legend" }, entries);
}
