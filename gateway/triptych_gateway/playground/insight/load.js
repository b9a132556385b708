// The live load of engines and encoders, asked for once a second while somebody can see it.

import { call } from "../api.js";
import { byId, bytes, count, h, renderOnce, svg } from "../dom.js";
import { change, state } from "../state.js";

const PERIOD_MS = 1000;
/** The same after a refusal: of a key, for example. */
const PERIOD_AFTER_TROUBLE_MS = 5000;
/** Longest wait for an answer. */
const TIMEOUT_MS = 10_000;
/** Points of a chart: two minutes. */
const LENGTH = 120;

/** Ask for the load for as long as the page lives. */
export async function followLoad() {
  for (;;) {
    if (isVisible()) await ask();
    await new Promise((resolve) => setTimeout(resolve, state.load.trouble ? PERIOD_AFTER_TROUBLE_MS : PERIOD_MS));
  }
}

function isVisible() {
  return !document.hidden && byId("load").checkVisibility() && state.models.length > 0;
}

async function ask() {
  try {
    const now = await (await call("load", { quiet: true, signal: AbortSignal.timeout(TIMEOUT_MS) })).json();
    const { history } = state.load;
    for (const engine of now.engines) if (engine.num_generated_tokens !== null) note(history, engine);
    for (const id of history.keys()) if (!now.engines.some((engine) => engine.id === id)) history.delete(id);
    change((state) => { state.load = { now, history, trouble: "" }; });
  } catch ({ message: trouble }) {
    if (trouble !== state.load.trouble) change((state) => { state.load = { ...state.load, trouble }; });
  }
}

/** Remember how many tokens an engine generated per second since the last time. */
function note(history, engine) {
  const at = performance.now();
  const past = history.get(engine.id) ?? { at, tokens: engine.num_generated_tokens, rates: [] };
  const seconds = (at - past.at) / 1000;
  const rate = seconds > 0 ? (engine.num_generated_tokens - past.tokens) / seconds : 0;
  history.set(engine.id, { at, tokens: engine.num_generated_tokens, rates: [...past.rates, rate].slice(-LENGTH) });
}

/** Show the load. */
export function renderLoad({ load }) {
  renderOnce(byId("load"), load, () => {
    const trouble = load.trouble && h("p", { class: "error" }, load.trouble);
    if (!load.now) return trouble || h("p", { class: "muted" }, "Waiting for the gateway.");
    return [
      trouble,
      ...named("Engine", load.now.engines, (engine, name) => engineCard(engine, name, load.history.get(engine.id)?.rates ?? [])),
      ...named("Encoder", load.now.encoders, encoderCard),
      ...named("Frontend", load.now.frontends, (one, name) => card(name, one.state, [fact("Requests", count(one.num_requests))])),
    ];
  });
}

/** The cards of services of a kind, which have numbers if there are several. */
function named(kind, services, make) {
  return services.map((service, index) => make(service, services.length > 1 ? `${kind} ${index + 1}` : kind));
}

function engineCard(engine, name, rates) {
  if (engine.num_blocks === null) return card(name, engine.state, []);
  const used = engine.num_blocks - engine.num_free_blocks;
  const found = share(engine.prefix_cache_hits, engine.prefix_cache_queries);
  return card(name, engine.state, [
    fact("Running", count(engine.num_running)),
    fact("Waiting", count(engine.num_waiting)),
    fact("Tokens/s", count(Math.round(rates.at(-1) ?? 0)), chart(rates)),
    meter("KV cache", used, engine.num_blocks, `${count(used * engine.block_size)} of ${count(engine.num_blocks * engine.block_size)} tokens`),
    fact("Prefix cache", found === null ? "not used yet" : `${found} % found`),
    engine.num_preemptions > 0 && fact("Preemptions", count(engine.num_preemptions)),
  ]);
}

function encoderCard(encoder, name) {
  if (encoder.capacity_bytes === null) return card(name, encoder.state, []);
  const { num_local_hits: hits, num_shared_hits: shared, num_joined: joined, num_misses: misses } = encoder;
  const found = share(hits + shared + joined, hits + shared + joined + misses);
  return card(name, encoder.state, [
    fact("Queue", count(encoder.queue_length)),
    meter("Cache", encoder.used_bytes, encoder.capacity_bytes, `${bytes(encoder.used_bytes)} of ${bytes(encoder.capacity_bytes)}`),
    fact("Items", `${count(encoder.num_entries)} kept`),
    fact("Requested", found === null ? "nothing yet" : `${found} % found`),
    found !== null && h(
      "p",
      { class: "muted small wide" },
      `${count(hits)} in memory · ${count(shared)} shared · ${count(joined)} joined · ${count(misses)} computed`,
    ),
  ]);
}

/** The share of a part in percent; null if there is no whole. */
function share(part, whole) {
  return whole ? Math.round((part / whole) * 100) : null;
}

function card(name, serverState, rows) {
  const head = h("h3", {}, h("span", { class: `dot ${serverState}`, "aria-hidden": "true" }), name, h("span", { class: "muted" }, serverState));
  return h("section", { class: "service" }, head, h("div", { class: "rows" }, rows));
}

function fact(name, value, extra = null) {
  return h("div", { class: "fact" }, h("span", {}, name), extra, h("span", { class: "number" }, value));
}

function meter(name, part, whole, text) {
  const bar = h("span", { class: "fill" });
  bar.style.width = `${whole ? (part / whole) * 100 : 0}%`;
  const role = { role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": whole, "aria-valuenow": part, "aria-valuetext": text };
  return h("div", { class: "meter-row" }, fact(name, text), h("div", { class: "meter", ...role }, bar));
}

function chart(rates) {
  const most = Math.max(...rates, 1);
  const points = rates.map((rate, index) => `${LENGTH - rates.length + index},${(23 - (rate / most) * 22).toFixed(1)}`);
  const line = svg("polyline", { points: points.join(" "), fill: "none" });
  return svg("svg", { class: "chart", viewBox: `0 0 ${LENGTH} 24`, preserveAspectRatio: "none", "aria-hidden": "true" }, line);
}
