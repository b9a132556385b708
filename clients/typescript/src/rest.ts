/** Chat by the gateway's REST API: for browsers, and wherever there is `fetch`. It imports no module of Node.js. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { ChatAccumulator } from "./accumulate.js";
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
  readonly #headers: Record<string, string>;

  constructor(options: RestClientOptions) {
    this.#url = new URL("v1/chat/completions", String(options.url).replace(/\/?$/, "/"));
    this.#headers = { "content-type": "application/json" };
    if (options.apiKey) this.#headers.authorization = `Bearer ${options.apiKey}`;
  }

  /** Answers a conversation, once all choices have ended. */
  chat(request: MessageInitShape<typeof ChatRequestSchema>, options?: RestCallOptions): Promise<ChatResponse> {
    return this.chatStream(request, options).finalResponse();
  }

  /** Answers a conversation, with text as it appears. The call starts when its first response is read. */
  chatStream(
    request: MessageInitShape<typeof ChatRequestSchema>,
    options: RestCallOptions = {},
  ): ResponseStream<ChatStreamResponse, ChatResponse> {
    const controller = new AbortController();
    const responses = this.#responses(bodyOf(request), options, controller);
    const cancel = (): void => {
      controller.abort(cancelledError());
    };
    return new ResponseStream(responses, cancel, new ChatAccumulator());
  }

  async *#responses(
    body: string,
    options: RestCallOptions,
    controller: AbortController,
  ): AsyncGenerator<ChatStreamResponse, undefined> {
    const { signal, timeoutMs = Infinity, requestId } = options;
    const abort = (): void => {
      controller.abort(cancelledError(signal?.reason));
    };
    const expire = (): void => {
      const message = `the call took longer than ${timeoutMs} ms`;
      controller.abort(new DeadlineExceededError(message, { code: Code.DEADLINE_EXCEEDED }));
    };
    const timer = timeoutMs === Infinity ? undefined : setTimeout(expire, timeoutMs);
    signal?.addEventListener("abort", abort, { once: true });
    if (signal?.aborted) abort();
    const headers = requestId ? { ...this.#headers, "x-request-id": requestId } : this.#headers;
    try {
      const response = await fetch(this.#url, { method: "POST", headers, body, signal: controller.signal });
      if (!response.ok) throw await httpError(response);
      yield* chunks(response.body);
    } catch (error) {
      throw controller.signal.aborted ? (controller.signal.reason as TriptychError) : restError(error);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
    return undefined;
  }
}

function bodyOf(request: MessageInitShape<typeof ChatRequestSchema>): string {
  try {
    return JSON.stringify(requestBody(create(ChatRequestSchema, request)));
  } catch (error) {
    // A number out of its type's range, a schema that is no JSON ...
    throw new InvalidRequestError((error as Error).message, { code: Code.INVALID_ARGUMENT, cause: error });
  }
}

async function* chunks(body: ReadableStream<Uint8Array> | null): AsyncGenerator<ChatStreamResponse, undefined> {
  for await (const data of body ? serverSentEvents(body) : []) {
    if (data === "[DONE]") return undefined;
    const chunk = JSON.parse(data) as Parameters<typeof streamResponse>[0];
    if (chunk.error) throw bodyError(chunk.error as unknown as ErrorBody, undefined);
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
      const { done, value } = await reader.read();
      if (done) return undefined;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    await reader.cancel().catch(() => undefined); // An error has been thrown already, or nobody reads any more.
  }
}

interface ErrorBody {
  message: string;
  code?: string | null;
  param?: string | null;
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
  const text = await response.text();
  try {
    return bodyError((JSON.parse(text) as { error: ErrorBody }).error, response);
  } catch {
    return bodyError({ message: `HTTP status ${response.status}` }, response); // Not by the gateway, but by a proxy before it.
  }
}

function bodyError(error: ErrorBody, response: Response | undefined): TriptychError {
  const reason = error.code ? (REASONS[error.code] ?? error.code.toUpperCase()) : "";
  const status = response?.status ?? 500;
  const retryAfterS = Number(response?.headers.get("retry-after") ?? NaN);
  return makeError(error.message, {
    code: codeOfReason(reason) ?? CODES[status] ?? (status < 500 ? Code.INVALID_ARGUMENT : Code.INTERNAL),
    reason,
    field: error.param ?? "",
    retryAfterS: Number.isNaN(retryAfterS) ? undefined : retryAfterS,
    hasDetails: Boolean(error.code),
  });
}

/** `fetch` throws a TypeError when it cannot reach the gateway, or loses it. Other errors are of an answer that is not the gateway's. */
function restError(error: unknown): TriptychError {
  if (error instanceof TriptychError) return error;
  const fields = { cause: error };
  return error instanceof TypeError
    ? new ServiceUnavailableError(`the gateway cannot be reached: ${error.message}`, {
        ...fields,
        code: Code.UNAVAILABLE,
      })
    : new InternalError(`the answer cannot be read: ${String(error)}`, { ...fields, code: Code.INTERNAL });
}
