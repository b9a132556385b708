package ai.triptych.client;

import io.grpc.Metadata;

/** Keys of the metadata that the client reads and writes. */
final class Headers {
  static final Metadata.Key<String> AUTHORIZATION = ascii("authorization");
  static final Metadata.Key<String> REQUEST_ID = ascii("x-request-id");
  static final Metadata.Key<byte[]> STATUS_DETAILS = binary("grpc-status-details-bin");
  static final Metadata.Key<byte[]> MEDIA = binary("triptych-media-bin");

  private Headers() {}

  /** Refuses what gRPC would send as something else. The message leaves the value out: it may be a key. */
  static String checked(String name, String value) {
    if (!value.chars().allMatch(character -> character >= ' ' && character <= '~')) {
      throw new IllegalArgumentException(name + " must have printable ASCII characters only, without line breaks");
    }
    return value;
  }

  private static Metadata.Key<String> ascii(String name) {
    return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
  }

  private static Metadata.Key<byte[]> binary(String name) {
    return Metadata.Key.of(name, Metadata.BINARY_BYTE_MARSHALLER);
  }
}
