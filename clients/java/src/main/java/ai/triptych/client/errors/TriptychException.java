package ai.triptych.client.errors;

import io.grpc.Status;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;

/**
 * A call failed. The subclass says why.
 *
 * <p>Programs should look at the class or at {@link #reason()}, not at the message. The cause is the exception of gRPC.
 */
public abstract class TriptychException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private final String contractName;
  private final ErrorDetails details;

  /**
   * For subclasses.
   *
   * @param contractName name of the class in the contracts
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  protected TriptychException(String contractName, ErrorDetails details, Throwable cause) {
    super(details.message(), cause);
    this.contractName = Objects.requireNonNull(contractName, "contractName");
    this.details = details;
  }

  /**
   * Makes the exception of the class that the reason asks for. If the reason is empty or unknown, the code decides.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   * @return the exception
   */
  public static TriptychException of(ErrorDetails details, Throwable cause) {
    return ErrorClass.of(details).create(details, cause);
  }

  /**
   * Name of the class in docs/contracts.md, the same in all languages: {@code QueueFullError}.
   *
   * @return the name
   */
  public final String contractName() {
    return contractName;
  }

  /**
   * All that is known of the error.
   *
   * @return the details
   */
  public final ErrorDetails details() {
    return details;
  }

  /**
   * The gRPC status code.
   *
   * @return the code
   */
  public final Status.Code code() {
    return details.code();
  }

  /**
   * Constant for programs, in UPPER_SNAKE_CASE.
   *
   * @return the reason; empty if the error comes from the transport
   */
  public final String reason() {
    return details.reason();
  }

  /**
   * Path of the offending field, for example {@code options.sampling.top_p}.
   *
   * @return the path; empty if no single field is at fault
   */
  public final String field() {
    return details.field();
  }

  /**
   * The limit that was exceeded, as text for people.
   *
   * @return the limit; empty if there is none
   */
  public final String limit() {
    return details.limit();
  }

  /**
   * What was given instead, as text for people.
   *
   * @return the value; empty if there is none
   */
  public final String value() {
    return details.value();
  }

  /**
   * When to try again.
   *
   * @return the time to wait; empty if a retry will not help
   */
  public final Optional<Duration> retryAfter() {
    return Optional.ofNullable(details.retryAfter());
  }

  /**
   * Id of the call, as the logs of the services have it.
   *
   * @return the id
   */
  public final String requestId() {
    return details.requestId();
  }

  /**
   * Whether a service of Triptych sent the error.
   *
   * @return false if the error comes from the transport
   */
  public final boolean hasDetails() {
    return details.hasDetails();
  }
}
