package ai.triptych.client.errors;

/** A service cannot run its model correctly. Never the error of a call. */
public final class UnsupportedModelException extends StartupException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public UnsupportedModelException(ErrorDetails details, Throwable cause) {
    super("UnsupportedModelError", details, cause);
  }
}
