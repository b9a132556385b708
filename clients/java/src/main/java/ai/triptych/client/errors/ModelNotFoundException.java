package ai.triptych.client.errors;

/** No model of that name is served here. */
public final class ModelNotFoundException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public ModelNotFoundException(ErrorDetails details, Throwable cause) {
    super("ModelNotFoundError", details, cause);
  }
}
