package ai.triptych.client;

import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Opens channels with the settings that the services need. */
final class Channels {
  /** Largest message in either direction, in bytes. */
  static final int MAX_MESSAGE_BYTES = 64 << 20;

  /**
   * What the calls of a channel may hold for their retries, all together, in bytes. By default it is 16 MiB, and a few pictures
   * at the same time would turn off retries. Nothing is allocated for it.
   */
  private static final long RETRY_BUFFER_BYTES = 4L << 30;

  /** A server that stops ends calls with CANCELLED that it has not taken yet (grpc/grpc#41785). */
  private static final List<String> RETRYABLE = List.of("UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED");

  private Channels() {}

  /** Throws IOException if a file of the TLS options cannot be read. */
  static ManagedChannel open(Addresses addresses, TlsOptions tls, RetryOptions retry) throws IOException {
    ChannelCredentials credentials = tls == null ? InsecureChannelCredentials.create() : tls.credentials();
    ManagedChannelBuilder<?> builder =
        Grpc.newChannelBuilder(addresses.target(), credentials)
            .maxInboundMessageSize(MAX_MESSAGE_BYTES)
            .keepAliveTime(20, TimeUnit.SECONDS)
            .keepAliveTimeout(10, TimeUnit.SECONDS)
            .defaultServiceConfig(serviceConfig(addresses, retry))
            // gRPC keeps a request for its retries only if it fits in here. By default pictures do not.
            .perRpcBufferLimit(MAX_MESSAGE_BYTES + (1 << 20))
            .retryBufferSize(RETRY_BUFFER_BYTES);
    if (retry.maxAttempts() > 1) {
      builder.enableRetry();
    } else {
      builder.disableRetry();
    }
    if (tls != null) tls.serverName().ifPresent(builder::overrideAuthority);
    return builder.build();
  }

  /** The service config as gRPC takes it: maps, lists, strings, and Double for every number. */
  static Map<String, ?> serviceConfig(Addresses addresses, RetryOptions retry) {
    Map<String, Object> config = new HashMap<>();
    if (addresses.areSeveral()) config.put("loadBalancingConfig", List.of(Map.of("round_robin", Map.of())));
    if (retry.maxAttempts() > 1) {
      Map<String, ?> policy =
          Map.of(
              "maxAttempts", (double) retry.maxAttempts(),
              "initialBackoff", seconds(retry.initialBackoff()),
              "maxBackoff", seconds(retry.maxBackoff()),
              "backoffMultiplier", retry.backoffMultiplier(),
              "retryableStatusCodes", RETRYABLE);
      config.put("methodConfig", List.of(Map.of("name", List.of(Map.of()), "retryPolicy", policy)));
    }
    return config;
  }

  private static String seconds(Duration duration) {
    return String.format(Locale.ROOT, "%d.%09ds", duration.getSeconds(), duration.getNano());
  }
}
