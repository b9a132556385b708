// Calls of the gateway. Addresses are relative, so the page also works behind a path prefix.

import { change, state } from "./state.js";

/** A refusal of the gateway, or a lost connection (status 0). */
export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message || (status ? `The gateway answered with status ${status}.` : "The gateway does not answer."));
    this.status = status;
    this.param = error?.param ?? null;
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
  if (response.status === 401 && !quiet) {
    change((state) => { state.keyWanted = state.key ? "This key is not right." : "This gateway needs an API key."; });
  }
  throw new ApiError(response.status, await errorOf(response));
}

/** The error that a body tells, with when to try again; null if it tells none, because a proxy wrote it. */
async function errorOf(response) {
  const error = (await response.json().catch(() => null))?.error;
  const seconds = response.headers.get("retry-after");
  return error?.message && seconds ? { ...error, message: `${error.message}. Try again in ${seconds} s.` } : error;
}

let lastSearch = 0;

/** Ask for the models until the gateway tells them. A later search takes the place of one that still waits. */
export async function findModels() {
  const search = ++lastSearch;
  while (search === lastSearch) {
    try {
      const { data } = await (await call("v1/models")).json();
      change((state) => {
        state.models = data;
        state.model = data.some((model) => model.id === state.model) ? state.model : (data[0]?.id ?? "");
        state.trouble = "";
      });
      return;
    } catch (error) {
      if (search === lastSearch) change((state) => { state.trouble = error.message; });
      if (error.status === 401) return; // the dialog calls this function again
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}
