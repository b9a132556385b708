package ai.triptych.client.errors;

import io.grpc.Status;
import java.util.Arrays;
import java.util.Map;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.stream.Collectors;

/** The classes of errors. The name of each constant is the reason that services send. */
enum ErrorClass {
  INVALID_REQUEST(InvalidRequestException::new),
  CONTEXT_LENGTH_EXCEEDED(ContextLengthException::new),
  KV_CACHE_CAPACITY_EXCEEDED(NeverFitsException::new),
  MODEL_NOT_FOUND(ModelNotFoundException::new),
  MEDIA_NOT_FOUND(MediaNotFoundException::new),
  DUPLICATE_REQUEST(DuplicateRequestException::new),
  QUEUE_FULL(QueueFullException::new),
  SERVICE_UNAVAILABLE(ServiceUnavailableException::new),
  EMBEDDING_UNAVAILABLE(EmbeddingUnavailableException::new),
  ABORTED(RequestAbortedException::new),
  DEADLINE_EXCEEDED(DeadlineExceededException::new),
  UNAUTHENTICATED(UnauthenticatedException::new),
  PERMISSION_DENIED(PermissionDeniedException::new),
  UNIMPLEMENTED(UnimplementedException::new),
  INTERNAL(InternalException::new),
  STARTUP(StartupException::new),
  UNSUPPORTED_MODEL(UnsupportedModelException::new);

  private static final Map<String, ErrorClass> BY_REASON =
      Arrays.stream(values()).collect(Collectors.toUnmodifiableMap(ErrorClass::name, Function.identity()));

  private final BiFunction<ErrorDetails, Throwable, TriptychException> constructor;

  ErrorClass(BiFunction<ErrorDetails, Throwable, TriptychException> constructor) {
    this.constructor = constructor;
  }

  static ErrorClass of(ErrorDetails details) {
    ErrorClass byReason = BY_REASON.get(details.reason());
    return byReason != null ? byReason : byCode(details.code());
  }

  private static ErrorClass byCode(Status.Code code) {
    return switch (code) {
      case CANCELLED, ABORTED -> ABORTED;
      case INVALID_ARGUMENT -> INVALID_REQUEST;
      case DEADLINE_EXCEEDED -> DEADLINE_EXCEEDED;
      case NOT_FOUND -> MODEL_NOT_FOUND;
      case ALREADY_EXISTS -> DUPLICATE_REQUEST;
      case PERMISSION_DENIED -> PERMISSION_DENIED;
      case RESOURCE_EXHAUSTED -> QUEUE_FULL;
      case FAILED_PRECONDITION, UNAVAILABLE -> SERVICE_UNAVAILABLE;
      case UNIMPLEMENTED -> UNIMPLEMENTED;
      case UNAUTHENTICATED -> UNAUTHENTICATED;
      default -> INTERNAL;
    };
  }

  TriptychException create(ErrorDetails details, Throwable cause) {
    return constructor.apply(details, cause);
  }
}
