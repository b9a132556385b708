package ai.triptych.client.errors;

/** An embedding that the request needs is lost. Encode the media item again. */
public final class EmbeddingUnavailableException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public EmbeddingUnavailableException(ErrorDetails details, Throwable cause) {
    super("EmbeddingUnavailableError", details, cause);
  }
}
