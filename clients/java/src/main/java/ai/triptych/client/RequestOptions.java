package ai.triptych.client;

import io.grpc.Metadata;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.UUID;
import java.util.function.Consumer;

/** Options of one call. Objects are immutable, and may be used for many calls. */
public final class RequestOptions {
  private static final RequestOptions NONE = builder().build();

  private final String requestId;
  private final Duration timeout;
  private final Metadata metadata;
  private final Consumer<Metadata> onTrailers;

  private RequestOptions(Builder builder) {
    requestId = builder.requestId;
    timeout = builder.timeout;
    metadata = copyOf(builder.metadata);
    onTrailers = builder.onTrailers;
  }

  /**
   * No options: the client's timeout, and a random request id.
   *
   * @return the options
   */
  public static RequestOptions none() {
    return NONE;
  }

  /**
   * Starts new options.
   *
   * @return a builder
   */
  public static Builder builder() {
    return new Builder();
  }

  /** The id to send. It is a new random one at each call of this method, unless the options have one. */
  String requestIdOrRandom() {
    return requestId != null ? requestId : UUID.randomUUID().toString().replace("-", "");
  }

  Optional<Duration> timeout() {
    return Optional.ofNullable(timeout);
  }

  /** A copy, because gRPC changes the metadata that it sends. */
  Metadata metadata() {
    return copyOf(metadata);
  }

  void answered(Metadata trailers) {
    if (onTrailers != null) onTrailers.accept(trailers);
  }

  private static Metadata copyOf(Metadata source) {
    Metadata copy = new Metadata();
    copy.merge(source);
    return copy;
  }

  /** Builds {@link RequestOptions}. */
  public static final class Builder {
    private String requestId;
    private Duration timeout;
    private final Metadata metadata = new Metadata();
    private Consumer<Metadata> onTrailers;

    private Builder() {}

    /**
     * Sends this id as {@code x-request-id}. The logs of the services have it. By default each call gets a random one.
     *
     * @param requestId at most 128 characters of A-Z a-z 0-9 . _ : / + = @ -; the server replaces another one
     * @return this builder
     * @throws IllegalArgumentException if it has characters that metadata cannot hold
     */
    public Builder requestId(String requestId) {
      this.requestId = Headers.checked("requestId", requestId);
      return this;
    }

    /**
     * Deadline of the call, its retries included. By default it is the client's.
     *
     * @param timeout from the start of the call; more than 30 years mean no deadline
     * @return this builder
     */
    public Builder timeout(Duration timeout) {
      this.timeout = Objects.requireNonNull(timeout, "timeout");
      return this;
    }

    /**
     * Sends an entry of metadata.
     *
     * @param key lower-case letters, digits and any of _ . -
     * @param value printable ASCII characters
     * @return this builder
     * @throws IllegalArgumentException if metadata cannot hold the key or the value
     */
    public Builder metadata(String key, String value) {
      metadata.put(Metadata.Key.of(key, Metadata.ASCII_STRING_MARSHALLER), Headers.checked(key, value));
      return this;
    }

    /**
     * Sends a binary entry of metadata.
     *
     * @param key as of a text, and it ends with {@code -bin}
     * @param value any bytes
     * @return this builder
     * @throws IllegalArgumentException if metadata cannot hold the key
     */
    public Builder metadata(String key, byte[] value) {
      metadata.put(Metadata.Key.of(key, Metadata.BINARY_BYTE_MARSHALLER), value.clone());
      return this;
    }

    /**
     * Is told the trailing metadata when a call that answers once has succeeded. {@link Media#reports} reads the reports on
     * media in it. A stream has {@link ResponseStream#trailingMedia()} instead.
     *
     * @param onTrailers called on the thread of the call, before the call returns
     * @return this builder
     */
    public Builder onTrailers(Consumer<Metadata> onTrailers) {
      this.onTrailers = Objects.requireNonNull(onTrailers, "onTrailers");
      return this;
    }

    /**
     * Makes the options.
     *
     * @return the options
     */
    public RequestOptions build() {
      return new RequestOptions(this);
    }
  }
}
