package ai.triptych.client.errors;

/** The call has no key, or one that is not valid. */
public final class UnauthenticatedException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public UnauthenticatedException(ErrorDetails details, Throwable cause) {
    super("UnauthenticatedError", details, cause);
  }
}
