package ai.triptych.client.errors;

/** The encoder has no embedding of a media item that came without its file. Send the file. */
public final class MediaNotFoundException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public MediaNotFoundException(ErrorDetails details, Throwable cause) {
    super("MediaNotFoundError", details, cause);
  }
}
