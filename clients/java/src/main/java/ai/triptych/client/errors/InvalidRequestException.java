package ai.triptych.client.errors;

/** The request is at fault. A retry will not help. */
public class InvalidRequestException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public InvalidRequestException(ErrorDetails details, Throwable cause) {
    super("InvalidRequestError", details, cause);
  }

  /**
   * For subclasses.
   *
   * @param contractName name of the class in the contracts
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  protected InvalidRequestException(String contractName, ErrorDetails details, Throwable cause) {
    super(contractName, details, cause);
  }
}
