// The pane of settings: its fields are those of the state.

import { FieldError, numberOf, NUMBERS, schemaOf, toolsOf } from "./request.js";
import { byId, setText } from "./dom.js";
import { keepSettings, renderPresets, wirePresets } from "./presets.js";
import { change, modelOf, state } from "./state.js";

const EXAMPLES = {
  tools: [
    {
      name: "get_weather",
      description: "The weather of a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  ],
  schema: {
    type: "object",
    properties: { answer: { type: "string" }, confidence: { enum: ["low", "medium", "high"] } },
    required: ["answer", "confidence"],
    additionalProperties: false,
  },
};
const CHECKS = { tools: toolsOf, schema: schemaOf };

/** Connect the fields. Called once. */
export function wireSettings() {
  const form = byId("settings");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => take(target.name, valueOf(target)));
  for (const button of form.querySelectorAll("[data-example]")) {
    const name = button.dataset.example;
    button.addEventListener("click", () => {
      form.elements[name].value = JSON.stringify(EXAMPLES[name], null, 2);
      take(name, form.elements[name].value);
    });
  }
  wirePresets(showSettings);
  showSettings();
}

/** Write the settings into their fields. */
function showSettings() {
  const { elements } = byId("settings");
  for (const [name, value] of Object.entries(state.settings)) {
    if (typeof value === "boolean") elements[name].checked = value;
    else elements[name].value = value;
  }
}

/** The value of a field; NaN if the browser cannot read its number. */
function valueOf(field) {
  if (field.type === "checkbox") return field.checked;
  return field.validity.badInput ? NaN : field.value;
}

function take(name, value) {
  change((state) => {
    state.settings[name] = value;
    delete state.faults[name];
    try {
      if (NUMBERS.includes(name)) numberOf(name, value);
      CHECKS[name]?.(value);
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      state.faults[name] = error.message;
    }
  });
  keepSettings();
}

/** Show what is wrong with settings, and which of them the model does not honour. */
export function renderSettings({ faults, settings }) {
  renderPresets(state);
  const form = byId("settings");
  for (const field of form.elements) {
    if (!field.name) continue;
    const fault = byId(`${field.name}-fault`);
    if (!fault) continue;
    const isWrong = Boolean(faults[field.name]);
    // A new fault opens its pane.
    if (isWrong && fault.hidden) field.closest("details").open = true;
    setText(fault, faults[field.name] ?? "");
    fault.hidden = !isWrong;
    field.setAttribute("aria-invalid", String(isWrong));
  }
  form.elements.top_logprobs.disabled = !settings.logprobs;
  const able = modelOf(state)?.triptych;
  unless(able?.tools ?? true, "tools", `${state.model} does not call tools.`);
  unless(able === undefined || able.constraints.length > 0, "schema", `${state.model} does not follow schemas.`);
  for (const name of ["tools", "schema"]) byId(`${name}-mark`).hidden = settings[name].trim() === "";
}

/** Switch a field off while the model does not honour it, and say why. */
function unless(isAble, name, why) {
  const field = byId("settings").elements[name];
  field.readOnly = !isAble;
  field.setAttribute("aria-disabled", String(!isAble));
  field.title = isAble ? "" : why;
  const note = byId(`${name}-why`);
  setText(note, isAble ? "" : why);
  note.hidden = isAble;
}
