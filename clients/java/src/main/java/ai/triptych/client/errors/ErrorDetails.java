package ai.triptych.client.errors;

import io.grpc.Status;
import java.io.Serializable;
import java.time.Duration;
import java.util.Objects;

/**
 * What is known of an error.
 *
 * @param code the gRPC status code
 * @param message one sentence for people; it names the field, the limit and the value
 * @param reason constant for programs, in UPPER_SNAKE_CASE; empty if the error comes from the transport
 * @param field path of the offending field, for example {@code messages[0].role}; empty if no single field is at fault
 * @param limit the limit that was exceeded; empty if there is none
 * @param value what was given; empty if there is no limit
 * @param retryAfter when to try again; null if a retry will not help
 * @param requestId id of the call, as the logs of the services have it
 * @param hasDetails whether a service sent the error; if not, it comes from the transport
 */
public record ErrorDetails(
    Status.Code code,
    String message,
    String reason,
    String field,
    String limit,
    String value,
    Duration retryAfter,
    String requestId,
    boolean hasDetails)
    implements Serializable {

  /** Checks that nothing but {@code retryAfter} is null. */
  public ErrorDetails {
    Objects.requireNonNull(code, "code");
    Objects.requireNonNull(message, "message");
    Objects.requireNonNull(reason, "reason");
    Objects.requireNonNull(field, "field");
    Objects.requireNonNull(limit, "limit");
    Objects.requireNonNull(value, "value");
    Objects.requireNonNull(requestId, "requestId");
  }

  /**
   * Details of an error that no service sent.
   *
   * @param code the gRPC status code
   * @param message one sentence for people
   * @param requestId id of the call; empty if there is none
   * @return the details
   */
  public static ErrorDetails ofTransport(Status.Code code, String message, String requestId) {
    return new ErrorDetails(code, message, "", "", "", "", null, requestId, false);
  }
}
