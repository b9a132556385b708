package ai.triptych.client.errors;

/** A service cannot start. Never the error of a call. */
public class StartupException extends TriptychException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  public StartupException(ErrorDetails details, Throwable cause) {
    super("StartupError", details, cause);
  }

  /**
   * For subclasses.
   *
   * @param contractName name of the class in the contracts
   * @param details what is known of the error
   * @param cause the exception of gRPC; may be null
   */
  protected StartupException(String contractName, ErrorDetails details, Throwable cause) {
    super(contractName, details, cause);
  }
}
