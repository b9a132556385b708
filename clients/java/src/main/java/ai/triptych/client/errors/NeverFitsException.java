package ai.triptych.client.errors;

/** The request needs more KV cache than the engine has in total. */
public final class NeverFitsException extends InvalidRequestException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public NeverFitsException(ErrorDetails details, Throwable cause) {
    super("NeverFitsError", details, cause);
  }
}
