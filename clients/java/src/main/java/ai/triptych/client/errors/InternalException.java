package ai.triptych.client.errors;

/** An unexpected error. The log of the service has its cause. */
public final class InternalException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public InternalException(ErrorDetails details, Throwable cause) {
    super("InternalError", details, cause);
  }
}
