package ai.triptych.client.errors;

/** The request is valid, but this service or model does not support it. */
public final class UnimplementedException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public UnimplementedException(ErrorDetails details, Throwable cause) {
    super("UnimplementedError", details, cause);
  }
}
