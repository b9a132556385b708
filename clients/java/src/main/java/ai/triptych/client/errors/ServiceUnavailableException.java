package ai.triptych.client.errors;

/** A service that the request needs is unavailable, or nobody answers at the address. */
public final class ServiceUnavailableException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public ServiceUnavailableException(ErrorDetails details, Throwable cause) {
    super("ServiceUnavailableError", details, cause);
  }
}
