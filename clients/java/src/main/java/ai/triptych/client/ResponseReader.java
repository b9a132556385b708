package ai.triptych.client;

import ai.triptych.client.errors.TriptychException;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.BooleanSupplier;

/**
 * Reads the responses of one call, on the thread that asks for them.
 *
 * <p>Each response is asked for when the one before it was taken. One response at most waits here, so a reader that pauses makes
 * the server wait, by the flow control of HTTP/2.
 */
final class ResponseReader<T> {
  /** A response, or the end of the call. */
  private record Event<T>(T response, Status status, Metadata trailers) {}

  private final ClientCall<?, T> call;
  private final String requestId;
  private final BooleanSupplier clientIsClosed;
  private final BlockingQueue<Event<T>> events = new LinkedBlockingQueue<>();
  private Event<T> end;
  private TriptychException error;

  private ResponseReader(ClientCall<?, T> call, String requestId, BooleanSupplier clientIsClosed) {
    this.call = call;
    this.requestId = requestId;
    this.clientIsClosed = clientIsClosed;
  }

  /** Starts a call that sends one request. */
  static <Q, A> ResponseReader<A> start(
      Channel channel,
      MethodDescriptor<Q, A> method,
      CallOptions options,
      Metadata headers,
      Q request,
      BooleanSupplier clientIsClosed) {
    String requestId = headers.get(Headers.REQUEST_ID);
    ClientCall<Q, A> call = channel.newCall(method, options);
    ResponseReader<A> reader = new ResponseReader<>(call, requestId, clientIsClosed);
    try {
      call.start(reader.new Listener(), headers);
      call.request(1);
      call.sendMessage(request);
      call.halfClose();
    } catch (RuntimeException | Error e) { // of an interceptor, for example
      call.cancel("the call could not be started", e);
      throw e;
    }
    return reader;
  }

  /** The {@code x-request-id} that was sent. */
  String requestId() {
    return requestId;
  }

  /** Waits for the next response. Returns null at the end of a call that succeeded, and throws the error of one that failed. */
  T next() {
    if (end == null) {
      Event<T> event = take();
      if (event.response() != null) {
        call.request(1);
        return event.response();
      }
      end = event;
      error = event.status().isOk() ? null : Errors.of(statusFor(event), event.trailers(), requestId);
    }
    if (error != null) throw error;
    return null;
  }

  /** The trailing metadata. Empty before the end. */
  Metadata trailers() {
    return end == null ? new Metadata() : end.trailers();
  }

  /** Ends the call on the server too. Any thread may do so, at any time. */
  void cancel(String reason, Throwable cause) {
    call.cancel(reason, cause);
  }

  private Event<T> take() {
    try {
      return events.take();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt(); // for the caller, who sees an exception that says nothing of threads
      String reason = "the thread that waited for a response was interrupted";
      cancel(reason, e);
      return new Event<>(null, Status.CANCELLED.withDescription(reason).withCause(e), new Metadata());
    }
  }

  /** gRPC ends the calls of a closed channel with UNAVAILABLE, which would look as if the server had gone. */
  private Status statusFor(Event<T> event) {
    boolean byClose = clientIsClosed.getAsBoolean() && event.status().getCode() == Status.Code.UNAVAILABLE;
    return byClose ? Status.CANCELLED.withDescription("the client was closed before the call had ended") : event.status();
  }

  private final class Listener extends ClientCall.Listener<T> {
    @Override
    public void onMessage(T message) {
      events.add(new Event<>(message, null, null));
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      events.add(new Event<>(null, status, trailers));
    }
  }
}
