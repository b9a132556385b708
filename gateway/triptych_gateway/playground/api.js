// Calls of the gateway. Addresses are relative, so the page also works behind a path prefix.

import { change, state } from "./state.js";

/** A refusal of the gateway, or a lost connection (status 0). */
export class ApiError extends Error {
  constructor(status, error = {}) {
    super(error.message || (status ? `The gateway answered with status ${status}.` : "The gateway does not answer."));
    this.status = status;
    this.param = error.param ?? null;
  }
}

/** Fetch from the gateway with the key. Throws ApiError. A refused key opens the dialog that asks for it, unless `quiet`. */
export async function call(path, { signal, body, quiet = false } = {}) {
  const headers = {};
  if (state.key) headers.authorization = `Bearer ${state.key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, signal, body: JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0);
  }
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  if (response.status === 401 && !quiet) {
    change((state) => { state.keyWanted = state.key ? "This key is not right." : "This gateway needs an API key."; });
  }
  throw new ApiError(response.status, error);
}

/** Ask for the models until the gateway tells them. */
export async function findModels() {
  for (;;) {
    try {
      const { data } = await (await call("v1/models")).json();
      change((state) => {
        state.models = data;
        state.model = data.some((model) => model.id === state.model) ? state.model : (data[0]?.id ?? "");
        state.trouble = "";
      });
      return;
    } catch (error) {
      change((state) => { state.trouble = error.message; });
      if (error.status === 401) return; // the dialog calls this function again
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}
