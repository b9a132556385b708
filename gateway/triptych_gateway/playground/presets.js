// What of the settings is kept in this browser: their values, the chosen model, and presets by name.

import { ask } from "./dialog.js";
import { byId, h, renderOnce } from "./dom.js";
import { change, defaults, state } from "./state.js";

const KEY = "triptych-settings";

/** Read what was kept. Called once, before the first rendering. */
export function readKept() {
  const kept = parsed();
  state.settings = settingsOf(kept.settings);
  state.model = typeof kept.model === "string" ? kept.model : "";
  state.presets = Object.fromEntries(Object.entries(kept.presets ?? {}).map(([name, settings]) => [name, settingsOf(settings)]));
}

function parsed() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {}; // not written by this page, or the browser keeps nothing
  }
}

/** Settings of which each has the type of its default. */
function settingsOf(value) {
  const own = Object.keys(defaults).filter((name) => typeof value?.[name] === typeof defaults[name]);
  return { ...defaults, ...Object.fromEntries(own.map((name) => [name, value[name]])) };
}

/** Keep the settings as they are now. */
export function keepSettings() {
  const { settings, model, presets } = state;
  try {
    localStorage.setItem(KEY, JSON.stringify({ settings, model, presets }));
  } catch (error) {
    change((state) => { state.notice = `The settings are not kept: ${error.message}`; });
  }
}

/** Connect the controls. `show` writes the settings into their fields. Called once. */
export function wirePresets(show) {
  const select = byId("presets");
  const set = (mutate) => {
    change(mutate);
    keepSettings();
  };
  select.addEventListener("change", () => {
    set((state) => {
      state.preset = select.value;
      state.settings = { ...(state.presets[select.value] ?? defaults) };
      state.faults = {};
    });
    show();
  });
  byId("preset-save").addEventListener("click", async () => {
    const name = await ask({ title: "Save the settings as a preset", label: "Name", value: state.preset, action: "Save" });
    if (!name) return;
    set((state) => {
      state.presets = { ...state.presets, [name]: { ...state.settings } };
      state.preset = name;
    });
  });
  byId("preset-delete").addEventListener("click", async () => {
    if ((await ask({ title: `Delete the preset “${state.preset}”?`, action: "Delete" })) === null) return;
    set((state) => {
      const { [state.preset]: _, ...others } = state.presets;
      Object.assign(state, { presets: others, preset: "" });
    });
  });
}

/** Show the presets. */
export function renderPresets({ presets, preset }) {
  const select = byId("presets");
  const names = Object.keys(presets).sort();
  const option = (name) => h("option", { value: name }, name || "The model's defaults");
  renderOnce(select, JSON.stringify(names), () => ["", ...names].map(option));
  if (select.value !== preset) select.value = preset;
  byId("preset-delete").disabled = preset === "";
}
