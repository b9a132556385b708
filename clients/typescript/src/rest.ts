/** Chat by the gateway's REST API: for browsers, and wherever there is `fetch`. It imports no module of Node.js. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { ChatAccumulator } from "./accumulate.js";
import { built, checkedTimeout } from "./checks.js";
import {
  cancelledError,
  Code,
  codeOfReason,
  DeadlineExceededError,
  InternalError,
  InvalidRequestError,
  makeError,
  ServiceUnavailableError,
  TriptychError,
} from "./errors.js";
import { ChatRequestSchema, type ChatResponse, type ChatStreamResponse } from "./gen/triptych/v1/generation_pb.js";
import { requestBody, streamResponse } from "./rest_messages.js";
import { ResponseStream } from "./stream.js";

export * from "./accumulate.js";
export * from "./errors.js";
export * from "./gen/triptych/v1/common_pb.js";
export * from "./gen/triptych/v1/generation_pb.js";
export * from "./media.js";
export { ResponseStream } from "./stream.js";

export interface RestClientOptions {
  /** Of the gateway, e.g. http://127.0.0.1:8000 */
  url: string | URL;
  /** Sent as `authorization: Bearer ...`. A page that has it shows it to whoever opens the page. */
  apiKey?: string | undefined;
}

export interface RestCallOptions {
  /** Cancels the call. It fails with RequestAbortedError, whose cause is the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Milliseconds until the call fails with DeadlineExceededError. Default: none. */
  timeoutMs?: number | undefined;
  /** Sent as x-request-id. */
  requestId?: string | undefined;
}

/** Chats by REST, with the messages, streams and errors of the gRPC client. Nothing is retried. */
export class RestClient {
  readonly #url: URL;
  readonly #headers = new Headers({ "content-type": "application/json" });

  constructor(options: RestClientOptions) {
    this.#url = new URL("v1/chat/completions", String(options.url).replace(/\/?$/, "/"));
    if (options.apiKey) setHeader(this.#headers, "apiKey", "authorization", `Bearer ${options.apiKey}`);
  }

  /** Answers a conversation, once all choices have ended. */
  async chat(request: MessageInitShape<typeof ChatRequestSchema>, options?: RestCallOptions): Promise<ChatResponse> {
    return await this.chatStream(request, options).finalResponse();
  }

  /** Answers a conversation, with text as it appears. The call starts when its first response is read. */
  chatStream(
    request: MessageInitShape<typeof ChatRequestSchema>,
    options: RestCallOptions = {},
  ): ResponseStream<ChatStreamResponse, ChatResponse> {
    const controller = new AbortController();
    const headers = new Headers(this.#headers);
    if (options.requestId) setHeader(headers, "requestId", "x-request-id", options.requestId);
    const body = built(() => JSON.stringify(requestBody(create(ChatRequestSchema, request))));
    const init = { method: "POST", headers, body, signal: controller.signal };
    const responses = this.#responses(init, options.signal, checkedTimeout(options.timeoutMs), controller);
    const cancel = (): void => {
      controller.abort(cancelledError());
    };
    return new ResponseStream(responses, cancel, new ChatAccumulator());
  }

  async *#responses(
    init: RequestInit,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    controller: AbortController,
  ): AsyncGenerator<ChatStreamResponse, undefined> {
    const abort = (): void => {
      controller.abort(cancelledError(signal?.reason));
    };
    const expire = (): void => {
      const message = `the call took longer than ${String(timeoutMs)} ms`;
      controller.abort(new DeadlineExceededError(message, { code: Code.DEADLINE_EXCEEDED }));
    };
    const timer = timeoutMs === undefined ? undefined : setTimeout(expire, timeoutMs);
    signal?.addEventListener("abort", abort, { once: true });
    if (signal?.aborted) abort();
    try {
      const response = await reached(fetch(this.#url, init));
      if (!response.ok) throw await httpError(response);
      yield* chunks(response.body);
    } catch (error) {
      if (controller.signal.aborted) throw controller.signal.reason;
      if (error instanceof TriptychError) throw error;
      throw new InternalError(`the answer cannot be read: ${String(error)}`, { code: Code.INTERNAL, cause: error });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
    return undefined;
  }
}

function setHeader(headers: Headers, field: string, name: string, value: string): void {
  try {
    headers.set(name, value);
  } catch {
    // The error of `fetch` shows parts of the value, which can be a secret.
    throw new InvalidRequestError(`${field}: HTTP cannot carry this value`, { code: Code.INVALID_ARGUMENT, field });
  }
}

/** Waits for the gateway. What fails then is the connection. */
async function reached<T>(step: Promise<T>): Promise<T> {
  try {
    return await step;
  } catch (error) {
    const message = `the gateway cannot be reached: ${(error as Error).message}`;
    throw new ServiceUnavailableError(message, { code: Code.UNAVAILABLE, cause: error });
  }
}

async function* chunks(body: ReadableStream<Uint8Array> | null): AsyncGenerator<ChatStreamResponse, undefined> {
  for await (const data of body ? serverSentEvents(body) : []) {
    if (data === "[DONE]") return undefined;
    const chunk = JSON.parse(data) as Parameters<typeof streamResponse>[0];
    if (chunk.error) throw errorOf(chunk.error, 500);
    yield streamResponse(chunk);
  }
  throw new ServiceUnavailableError("the answer ended before its last event", { code: Code.UNAVAILABLE });
}

/** The data of each event. The bytes may be split anywhere. The gateway writes each event's data on one line. */
export async function* serverSentEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<string, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reached(reader.read());
      if (done) return undefined;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    await reader.cancel().catch(() => undefined); // An error has been thrown already, or nobody reads any more.
  }
}

const REASONS: Record<string, string> = {
  invalid_api_key: "UNAUTHENTICATED",
  unsupported: "UNIMPLEMENTED",
  internal_error: "INTERNAL",
};
const CODES: Record<number, number> = {
  401: Code.UNAUTHENTICATED,
  403: Code.PERMISSION_DENIED,
  404: Code.NOT_FOUND,
  429: Code.RESOURCE_EXHAUSTED,
  502: Code.UNAVAILABLE,
  503: Code.UNAVAILABLE,
  504: Code.DEADLINE_EXCEEDED,
};

async function httpError(response: Response): Promise<TriptychError> {
  const text = await reached(response.text());
  const seconds = Number(response.headers.get("retry-after") ?? NaN);
  let error: unknown;
  try {
    error = (JSON.parse(text) as { error?: unknown } | null)?.error;
  } catch {
    // Not by the gateway, but by a proxy before it.
  }
  const retryAfterS = Number.isNaN(seconds) ? undefined : seconds;
  return errorOf(error, response.status, retryAfterS, response.headers.get("x-request-id") ?? "");
}

type Told = { message?: string; code?: unknown; param?: string } | null;

/** The error that the gateway tells, with as much as is there of it. */
function errorOf(error: unknown, status: number, retryAfterS?: number, requestId = ""): TriptychError {
  const told = (typeof error === "object" ? error : null) as Told;
  const reason = typeof told?.code === "string" ? (REASONS[told.code] ?? told.code.toUpperCase()) : "";
  return makeError(told?.message ?? `HTTP status ${status}`, {
    code: codeOfReason(reason) ?? CODES[status] ?? (status < 500 ? Code.INVALID_ARGUMENT : Code.INTERNAL),
    reason,
    field: told?.param ?? "",
    retryAfterS,
    requestId,
    hasDetails: reason !== "",
  });
}
