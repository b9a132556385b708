package ai.triptych.client;

import ai.triptych.client.errors.ErrorDetails;
import ai.triptych.client.errors.InternalException;
import ai.triptych.client.errors.TriptychException;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import ai.triptych.client.details.ErrorInfo;
import ai.triptych.client.details.RequestInfo;
import ai.triptych.client.details.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** Turns a status of gRPC into an exception of this client. */
final class Errors {
  /**
   * What gRPC libraries say of a message or metadata above their limits. The code is RESOURCE_EXHAUSTED then, but no queue is
   * full.
   */
  private static final List<String> TOO_LARGE =
      List.of("exceeds maximum size", "message too large", "message larger than max", "metadata size exceeds");

  private Errors() {}

  /** The exception of a failed call. The request id is the one that was sent; a service that replaced it says so. */
  static TriptychException of(Status status, Metadata trailers, String requestId) {
    Throwable cause = status.asRuntimeException(trailers);
    Optional<ai.triptych.client.details.Status> sent = details(trailers);
    if (sent.isEmpty()) {
      ErrorDetails details = ErrorDetails.ofTransport(status.getCode(), message(status, true), requestId);
      return isTooLarge(details) ? new InternalException(details, cause) : TriptychException.of(details, cause);
    }
    List<Any> packed = sent.get().getDetailsList();
    ErrorInfo info = unpacked(packed, ErrorInfo.class).orElse(ErrorInfo.getDefaultInstance());
    Optional<RetryInfo> retry = unpacked(packed, RetryInfo.class);
    Optional<RequestInfo> request = unpacked(packed, RequestInfo.class);
    ErrorDetails details =
        new ErrorDetails(
            status.getCode(),
            message(status, false),
            info.getReason(),
            info.getMetadataOrDefault("field", ""),
            info.getMetadataOrDefault("limit", ""),
            info.getMetadataOrDefault("value", ""),
            retry.map(Errors::delay).orElse(null),
            request.map(RequestInfo::getRequestId).orElse(requestId),
            true);
    return TriptychException.of(details, cause);
  }

  /** The transport's own words are few ("io exception"), so its cause is told too. */
  private static String message(Status status, boolean isOfTransport) {
    String message = status.getDescription() == null ? status.getCode().name() : status.getDescription();
    Throwable cause = status.getCause();
    boolean tellsMore = isOfTransport && cause != null && cause.getMessage() != null;
    return tellsMore && !message.contains(cause.getMessage()) ? message + ": " + cause.getMessage() : message;
  }

  private static boolean isTooLarge(ErrorDetails details) {
    return details.code() == Status.Code.RESOURCE_EXHAUSTED && TOO_LARGE.stream().anyMatch(details.message()::contains);
  }

  private static Optional<ai.triptych.client.details.Status> details(Metadata trailers) {
    byte[] bytes = trailers.get(Headers.STATUS_DETAILS);
    if (bytes == null) return Optional.empty();
    try {
      return Optional.of(ai.triptych.client.details.Status.parseFrom(bytes));
    } catch (InvalidProtocolBufferException e) { // of somebody else
      return Optional.empty();
    }
  }

  private static <T extends Message> Optional<T> unpacked(List<Any> details, Class<T> type) {
    for (Any detail : details) {
      if (!detail.is(type)) continue;
      try {
        return Optional.of(detail.unpack(type));
      } catch (InvalidProtocolBufferException e) {
        continue; // of no use, and no reason to hide the rest
      }
    }
    return Optional.empty();
  }

  private static Duration delay(RetryInfo retry) {
    return Duration.ofSeconds(retry.getRetryDelay().getSeconds(), retry.getRetryDelay().getNanos());
  }
}
