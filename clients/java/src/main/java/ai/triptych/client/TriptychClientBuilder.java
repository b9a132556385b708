package ai.triptych.client;

import io.grpc.Channel;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** Builds a {@link TriptychClient}. */
public final class TriptychClientBuilder {
  private static final String DEFAULT_ADDRESS = "127.0.0.1:50051";

  private String address;
  private String apiKey;
  private Duration timeout;
  private TlsOptions tls;
  private RetryOptions retry = RetryOptions.defaults();
  private final List<ClientInterceptor> interceptors = new ArrayList<>();

  /** Takes the defaults from the environment. */
  TriptychClientBuilder(Map<String, String> environment) {
    String fromEnvironment = environment.getOrDefault("TRIPTYCH_ADDRESS", "");
    address = fromEnvironment.isBlank() ? DEFAULT_ADDRESS : fromEnvironment;
    apiKey = environment.getOrDefault("TRIPTYCH_API_KEY", "");
  }

  /**
   * Address of a frontend: {@code host:port}, or another target of gRPC ({@code dns:///...}). Several of {@code host:port},
   * separated by commas, take the calls in turn; those that do not answer are left out. By default it is the environment variable
   * {@code TRIPTYCH_ADDRESS}, or else {@code 127.0.0.1:50051}.
   *
   * @param address the address or the addresses
   * @return this builder
   */
  public TriptychClientBuilder address(String address) {
    this.address = Objects.requireNonNull(address, "address");
    return this;
  }

  /**
   * Key to send with each call, as {@code authorization: Bearer KEY}. By default it is the environment variable
   * {@code TRIPTYCH_API_KEY}.
   *
   * @param apiKey the key; an empty one is not sent
   * @return this builder
   */
  public TriptychClientBuilder apiKey(String apiKey) {
    this.apiKey = Objects.requireNonNull(apiKey, "apiKey");
    return this;
  }

  /**
   * Deadline of calls that have none of their own. By default there is none.
   *
   * @param timeout from the start of a call, its retries included
   * @return this builder
   */
  public TriptychClientBuilder timeout(Duration timeout) {
    this.timeout = Objects.requireNonNull(timeout, "timeout");
    return this;
  }

  /**
   * Connects with TLS. By default the connection is not encrypted.
   *
   * @param tls authorities, own certificate, name of the server
   * @return this builder
   */
  public TriptychClientBuilder tls(TlsOptions tls) {
    this.tls = Objects.requireNonNull(tls, "tls");
    return this;
  }

  /**
   * Changes the retries. By default they are {@link RetryOptions#defaults()}.
   *
   * @param retry the options
   * @return this builder
   */
  public TriptychClientBuilder retry(RetryOptions retry) {
    this.retry = Objects.requireNonNull(retry, "retry");
    return this;
  }

  /**
   * Adds interceptors of gRPC: for tracing, metrics, logs. The first one sees a call first. They see the request id and the key
   * in the metadata, and a call with all its retries as one.
   *
   * @param interceptors the interceptors
   * @return this builder
   */
  public TriptychClientBuilder interceptors(ClientInterceptor... interceptors) {
    this.interceptors.addAll(List.of(interceptors));
    return this;
  }

  /**
   * Makes the client. It connects at its first call.
   *
   * @return the client
   * @throws IllegalArgumentException if an address or the key cannot be used, or a file of the TLS options has no certificate
   *     or key
   * @throws UncheckedIOException if a file of the TLS options cannot be read
   */
  public TriptychClient build() {
    Addresses addresses = Addresses.parse(address);
    List<ClientInterceptor> all = new ArrayList<>();
    if (!apiKey.isEmpty()) all.add(keyInterceptor(Headers.checked("apiKey", apiKey)));
    all.addAll(interceptors);
    ManagedChannel managed = open(addresses);
    Channel channel = ClientInterceptors.interceptForward(managed, all);
    return new TriptychClient(new Connection(managed, channel, addresses.areSeveral(), timeout));
  }

  private ManagedChannel open(Addresses addresses) {
    try {
      return Channels.open(addresses, tls, retry);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private static ClientInterceptor keyInterceptor(String apiKey) {
    Metadata headers = new Metadata();
    headers.put(Headers.AUTHORIZATION, "Bearer " + apiKey);
    return MetadataUtils.newAttachHeadersInterceptor(headers);
  }
}
