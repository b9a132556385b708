package ai.triptych.client.errors;

/** The caller is known, and may not do this. */
public final class PermissionDeniedException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public PermissionDeniedException(ErrorDetails details, Throwable cause) {
    super("PermissionDeniedError", details, cause);
  }
}
