package ai.triptych.client.errors;

/** A queue is full. Try again after {@link #retryAfter()}. */
public final class QueueFullException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public QueueFullException(ErrorDetails details, Throwable cause) {
    super("QueueFullError", details, cause);
  }
}
