package ai.triptych.client.errors;

/** The call took longer than its deadline. Its work was aborted. */
public final class DeadlineExceededException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public DeadlineExceededException(ErrorDetails details, Throwable cause) {
    super("DeadlineExceededError", details, cause);
  }
}
