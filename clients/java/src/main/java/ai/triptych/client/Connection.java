package ai.triptych.client;

import ai.triptych.client.errors.ErrorDetails;
import ai.triptych.client.errors.InvalidRequestException;
import com.google.protobuf.MessageLite;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** What all calls of a client share: the channel and the defaults. */
final class Connection implements AutoCloseable {
  /** A longer timeout is none. */
  private static final Duration LONGEST_TIMEOUT = Duration.ofSeconds(1_000_000_000);

  /**
   * How often a lost connection is tried again, at most, while there are calls. By default gRPC for Java waits up to two minutes
   * after several failures, and has no option for it.
   */
  private static final long RECONNECT_NANOS = TimeUnit.SECONDS.toNanos(2);

  private final ManagedChannel managed;
  private final Channel channel;
  private final boolean hasSeveralAddresses;
  private final Duration timeout;
  private final AtomicLong lastReconnect = new AtomicLong(System.nanoTime());
  private volatile boolean isClosed;

  /**
   * Takes a channel.
   *
   * @param managed the channel, which {@link #close} closes
   * @param channel the same with interceptors
   * @param timeout of calls that have none of their own; null: none
   */
  Connection(ManagedChannel managed, Channel channel, boolean hasSeveralAddresses, Duration timeout) {
    this.managed = managed;
    this.channel = channel;
    this.hasSeveralAddresses = hasSeveralAddresses;
    this.timeout = timeout;
  }

  Channel channel() {
    return channel;
  }

  /** Makes a call that answers once. */
  <Q extends MessageLite, A> A unary(MethodDescriptor<Q, A> method, Q request, RequestOptions options) {
    ResponseReader<A> reader = start(method, request, options);
    A response = reader.next();
    if (response == null || reader.next() != null) {
      reader.cancel("not one response", null);
      Status status = Status.INTERNAL.withDescription("the server sent no response, or more than one");
      throw Errors.of(status, new Metadata(), reader.requestId());
    }
    options.answered(reader.trailers());
    return response;
  }

  /** Starts a call. */
  <Q extends MessageLite, A> ResponseReader<A> start(MethodDescriptor<Q, A> method, Q request, RequestOptions options) {
    if (isClosed) throw new IllegalStateException("this client is closed");
    Metadata headers = options.metadata();
    headers.discardAll(Headers.REQUEST_ID);
    headers.put(Headers.REQUEST_ID, options.requestIdOrRandom());
    checkSize(request, headers.get(Headers.REQUEST_ID));
    reconnect();
    return ResponseReader.start(channel, method, callOptions(options), headers, request, () -> isClosed);
  }

  private CallOptions callOptions(RequestOptions options) {
    Duration chosen = options.timeout().orElse(timeout);
    if (chosen == null || chosen.compareTo(LONGEST_TIMEOUT) > 0) return CallOptions.DEFAULT;
    // A timeout in the distant past would overflow, and means the same as one that has just passed.
    long nanos = chosen.isNegative() ? -1 : chosen.toNanos();
    return CallOptions.DEFAULT.withDeadlineAfter(nanos, TimeUnit.NANOSECONDS);
  }

  /** Refuses a request that the server would not take. Its own error would be that of a full queue, and would be retried. */
  private static void checkSize(MessageLite request, String requestId) {
    int size = request.getSerializedSize();
    if (size <= Channels.MAX_MESSAGE_BYTES) return;
    String limit = String.valueOf(Channels.MAX_MESSAGE_BYTES);
    String message = "the request has " + size + " bytes, more than " + limit + "; send large media with UploadMedia";
    throw new InvalidRequestException(
        new ErrorDetails(
            Status.Code.INVALID_ARGUMENT, message, "INVALID_REQUEST", "", limit, String.valueOf(size), null, requestId, false),
        null);
  }

  /**
   * Tries lost connections again, at once. With several addresses the channel as a whole is ready while one of them is lost, so
   * its state says nothing of the others.
   */
  void reconnect() {
    if (!hasSeveralAddresses && managed.getState(false) != ConnectivityState.TRANSIENT_FAILURE) return;
    long last = lastReconnect.get();
    long now = System.nanoTime();
    if (now - last >= RECONNECT_NANOS && lastReconnect.compareAndSet(last, now)) managed.resetConnectBackoff();
  }

  @Override
  public void close() {
    isClosed = true;
    managed.shutdownNow();
  }
}
