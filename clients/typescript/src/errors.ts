/** gRPC status codes by number, for modules that must not import gRPC. */
export const Code = {
  CANCELLED: 1,
  UNKNOWN: 2,
  INVALID_ARGUMENT: 3,
  DEADLINE_EXCEEDED: 4,
  NOT_FOUND: 5,
  ALREADY_EXISTS: 6,
  PERMISSION_DENIED: 7,
  RESOURCE_EXHAUSTED: 8,
  FAILED_PRECONDITION: 9,
  ABORTED: 10,
  UNIMPLEMENTED: 12,
  INTERNAL: 13,
  UNAVAILABLE: 14,
  UNAUTHENTICATED: 16,
} as const;

/** What an error says beside its message. */
export interface ErrorFields {
  /** gRPC status code. */
  code: number;
  /** UPPER_SNAKE_CASE constant of the service; empty if the error did not come from one of Triptych's services. */
  reason?: string;
  /** The field at fault, e.g. `messages[0].role`; empty when there is none. */
  field?: string;
  /** The limit that was exceeded, and what was given; empty when there is none. */
  limit?: string;
  value?: string;
  /** When to try again, in seconds; undefined when a retry will not help. */
  retryAfterS?: number | undefined;
  /** Whether the error came with details, which means that one of Triptych's services raised it and not the transport. */
  hasDetails?: boolean;
  /** The id of the call, as the services' logs have it; empty if none was sent and none came back. */
  requestId?: string;
  cause?: unknown;
}

/** Every failed call ends with one of this class. Its subclasses are those of docs/contracts.md. */
export class TriptychError extends Error {
  override readonly name: string = "TriptychError";
  readonly code: number;
  readonly reason: string;
  readonly field: string;
  readonly limit: string;
  readonly value: string;
  readonly retryAfterS: number | undefined;
  readonly hasDetails: boolean;
  readonly requestId: string;

  constructor(message: string, fields: ErrorFields) {
    super(message, "cause" in fields ? { cause: fields.cause } : undefined);
    this.code = fields.code;
    this.reason = fields.reason ?? "";
    this.field = fields.field ?? "";
    this.limit = fields.limit ?? "";
    this.value = fields.value ?? "";
    this.retryAfterS = fields.retryAfterS;
    this.hasDetails = fields.hasDetails ?? false;
    this.requestId = fields.requestId ?? "";
  }
}

/** The request is at fault. A retry will not help. */
export class InvalidRequestError extends TriptychError {
  override readonly name: string = "InvalidRequestError";
}

/** The prompt, or prompt and output together, are longer than the model's context. */
export class ContextLengthError extends InvalidRequestError {
  override readonly name = "ContextLengthError";
}

/** The request needs more KV cache than the engine has in total. */
export class NeverFitsError extends InvalidRequestError {
  override readonly name = "NeverFitsError";
}

/** No model of that name is served here. */
export class ModelNotFoundError extends TriptychError {
  override readonly name = "ModelNotFoundError";
}

/** The cache has no embedding for this key, and the request came without the file: send the file. */
export class MediaNotFoundError extends TriptychError {
  override readonly name = "MediaNotFoundError";
}

/** A live request already has this id. */
export class DuplicateRequestError extends TriptychError {
  override readonly name = "DuplicateRequestError";
}

/** The queue is at its limit. `retryAfterS` says when to try again. */
export class QueueFullError extends TriptychError {
  override readonly name = "QueueFullError";
}

/** A service that the request needs is unavailable, draining or asleep, or cannot be reached. */
export class ServiceUnavailableError extends TriptychError {
  override readonly name = "ServiceUnavailableError";
}

/** A required embedding is no longer held, or its encoder is unavailable. */
export class EmbeddingUnavailableError extends TriptychError {
  override readonly name = "EmbeddingUnavailableError";
}

/** The request was ended by an abort, by the server or by this client: then `cause` is the reason of its AbortSignal. */
export class RequestAbortedError extends TriptychError {
  override readonly name = "RequestAbortedError";
}

/** The call took longer than its deadline. The work was aborted. */
export class DeadlineExceededError extends TriptychError {
  override readonly name = "DeadlineExceededError";
}

/** The call has no key, or one that is not valid. */
export class UnauthenticatedError extends TriptychError {
  override readonly name = "UnauthenticatedError";
}

/** The caller is known, and may not do this. */
export class PermissionDeniedError extends TriptychError {
  override readonly name = "PermissionDeniedError";
}

/** The request is valid, but this service or model does not support it. */
export class UnimplementedError extends TriptychError {
  override readonly name = "UnimplementedError";
}

/** An unexpected error. The service's log has the traceback. */
export class InternalError extends TriptychError {
  override readonly name = "InternalError";
}

/** A service cannot start. Never on a call. */
export class StartupError extends TriptychError {
  override readonly name: string = "StartupError";
}

/** The model cannot run correctly here. Never on a call. */
export class UnsupportedModelError extends StartupError {
  override readonly name = "UnsupportedModelError";
}

type ErrorClass = new (message: string, fields: ErrorFields) => TriptychError;

const BY_REASON = new Map<string, { errorClass: ErrorClass; code: number }>([
  ["INVALID_REQUEST", { errorClass: InvalidRequestError, code: Code.INVALID_ARGUMENT }],
  ["CONTEXT_LENGTH_EXCEEDED", { errorClass: ContextLengthError, code: Code.INVALID_ARGUMENT }],
  ["KV_CACHE_CAPACITY_EXCEEDED", { errorClass: NeverFitsError, code: Code.INVALID_ARGUMENT }],
  ["MODEL_NOT_FOUND", { errorClass: ModelNotFoundError, code: Code.NOT_FOUND }],
  ["MEDIA_NOT_FOUND", { errorClass: MediaNotFoundError, code: Code.NOT_FOUND }],
  ["DUPLICATE_REQUEST", { errorClass: DuplicateRequestError, code: Code.ALREADY_EXISTS }],
  ["QUEUE_FULL", { errorClass: QueueFullError, code: Code.RESOURCE_EXHAUSTED }],
  ["SERVICE_UNAVAILABLE", { errorClass: ServiceUnavailableError, code: Code.UNAVAILABLE }],
  ["EMBEDDING_UNAVAILABLE", { errorClass: EmbeddingUnavailableError, code: Code.FAILED_PRECONDITION }],
  ["ABORTED", { errorClass: RequestAbortedError, code: Code.ABORTED }],
  ["DEADLINE_EXCEEDED", { errorClass: DeadlineExceededError, code: Code.DEADLINE_EXCEEDED }],
  ["UNAUTHENTICATED", { errorClass: UnauthenticatedError, code: Code.UNAUTHENTICATED }],
  ["PERMISSION_DENIED", { errorClass: PermissionDeniedError, code: Code.PERMISSION_DENIED }],
  ["UNIMPLEMENTED", { errorClass: UnimplementedError, code: Code.UNIMPLEMENTED }],
  ["INTERNAL", { errorClass: InternalError, code: Code.INTERNAL }],
  ["STARTUP", { errorClass: StartupError, code: Code.FAILED_PRECONDITION }],
  ["UNSUPPORTED_MODEL", { errorClass: UnsupportedModelError, code: Code.FAILED_PRECONDITION }],
]);

/** The first class of each code, but where a code alone says something else. */
const BY_CODE = new Map<number, ErrorClass>([
  ...[...BY_REASON.values()].reverse().map(({ errorClass, code }): [number, ErrorClass] => [code, errorClass]),
  [Code.CANCELLED, RequestAbortedError],
  [Code.FAILED_PRECONDITION, ServiceUnavailableError],
]);

/** The error of the class that its reason names, or else its code. */
export function makeError(message: string, fields: ErrorFields): TriptychError {
  const errorClass = BY_REASON.get(fields.reason ?? "")?.errorClass ?? BY_CODE.get(fields.code) ?? InternalError;
  return new errorClass(message, fields);
}

/** The gRPC status code of a reason; undefined for reasons of a newer server. */
export function codeOfReason(reason: string): number | undefined {
  return BY_REASON.get(reason)?.code;
}

/** The error of a call that this client cancelled itself. */
export function cancelledError(cause?: unknown): RequestAbortedError {
  return new RequestAbortedError("the call was cancelled by this client", { code: Code.CANCELLED, cause });
}
