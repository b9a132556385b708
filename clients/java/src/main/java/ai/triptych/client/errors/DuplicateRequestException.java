package ai.triptych.client.errors;

/** A live request already has this id. */
public final class DuplicateRequestException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public DuplicateRequestException(ErrorDetails details, Throwable cause) {
    super("DuplicateRequestError", details, cause);
  }
}
