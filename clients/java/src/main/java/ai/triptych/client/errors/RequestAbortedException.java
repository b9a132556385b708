package ai.triptych.client.errors;

/** The call was ended by an abort, or by a cancellation on this side. */
public final class RequestAbortedException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public RequestAbortedException(ErrorDetails details, Throwable cause) {
    super("RequestAbortedError", details, cause);
  }
}
