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
