package ai.triptych.client.errors;

/** The prompt, or prompt and output together, are longer than the model's context. */
public final class ContextLengthException extends InvalidRequestException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public ContextLengthException(ErrorDetails details, Throwable cause) {
    super("ContextLengthError", details, cause);
  }
}
