import { Code, InvalidRequestError } from "./errors.js";

/** Timers take no more: almost 25 days. */
const LONGEST_MS = 2 ** 31 - 1;

/** The milliseconds of a deadline; undefined if there is none, or only one that is too far away to be kept. */
export function checkedTimeout(timeoutMs: number | undefined): number | undefined {
  if (Number.isNaN(timeoutMs)) {
    const fields = { code: Code.INVALID_ARGUMENT, field: "timeoutMs", value: "NaN" };
    throw new InvalidRequestError("timeoutMs is NaN, not a number of milliseconds", fields);
  }
  return timeoutMs !== undefined && timeoutMs <= LONGEST_MS ? timeoutMs : undefined;
}

/** What `build` makes of a request. What fails then is the request: its message names the field and the value. */
export function built<T>(build: () => T): T {
  try {
    return build();
  } catch (error) {
    // A number out of its type's range, a string that is no Unicode, a schema that is no JSON ...
    throw new InvalidRequestError((error as Error).message, { code: Code.INVALID_ARGUMENT, cause: error });
  }
}
