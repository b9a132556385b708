package ai.triptych.client;

import ai.triptych.v1.ChatRequest;
import ai.triptych.v1.ChatResponse;
import ai.triptych.v1.ChatStreamRequest;
import ai.triptych.v1.ChatStreamResponse;
import ai.triptych.v1.Choice;
import ai.triptych.v1.ChoiceDelta;
import ai.triptych.v1.GenerationServiceGrpc;
import com.google.protobuf.Any;
import com.google.protobuf.Message;
import io.grpc.ForwardingServerCall.SimpleForwardingServerCall;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;

/** A frontend in this process, on a port of its own, that does what a test says. */
final class FakeFrontend extends GenerationServiceGrpc.GenerationServiceImplBase implements AutoCloseable {
  final Server server;

  /** The metadata of each call, the attempts of retries included. */
  final List<Metadata> calls = new CopyOnWriteArrayList<>();

  /** Opens when a client has cancelled a call. */
  final CountDownLatch cancelled = new CountDownLatch(1);

  volatile BiConsumer<ChatRequest, StreamObserver<ChatResponse>> onChat = (request, answer) -> answer(answer, text("hi"));
  volatile BiConsumer<ChatStreamRequest, ServerCallStreamObserver<ChatStreamResponse>> onChatStream;

  /** Sent at the end of each call. */
  volatile Metadata trailers = new Metadata();

  FakeFrontend() throws IOException {
    this(0, InsecureServerCredentials.create());
  }

  FakeFrontend(int port, ServerCredentials credentials) throws IOException {
    server =
        Grpc.newServerBuilderForPort(port, credentials)
            .maxInboundMessageSize(Channels.MAX_MESSAGE_BYTES)
            .addService(this)
            .intercept(new Recorder())
            .build()
            .start();
  }

  String address() {
    return "127.0.0.1:" + server.getPort();
  }

  /** A client of this server alone, without what the environment says. */
  TriptychClientBuilder clientBuilder() {
    return TriptychClient.builder(Map.of()).address(address());
  }

  TriptychClient client() {
    return clientBuilder().build();
  }

  /** The value that the last call had in its metadata. */
  String header(String name) {
    return calls.get(calls.size() - 1).get(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER));
  }

  @Override
  public void chat(ChatRequest request, StreamObserver<ChatResponse> answer) {
    ((ServerCallStreamObserver<ChatResponse>) answer).setOnCancelHandler(cancelled::countDown);
    onChat.accept(request, answer);
  }

  @Override
  public void chatStream(ChatStreamRequest request, StreamObserver<ChatStreamResponse> answer) {
    ServerCallStreamObserver<ChatStreamResponse> responses = (ServerCallStreamObserver<ChatStreamResponse>) answer;
    responses.setOnCancelHandler(cancelled::countDown);
    onChatStream.accept(request, responses);
  }

  @Override
  public void close() {
    stop();
  }

  /** Cuts all connections, and waits until the port is free. */
  void stop() {
    server.shutdownNow();
    try {
      server.awaitTermination(5, TimeUnit.SECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  static <T> void answer(StreamObserver<T> observer, T response) {
    observer.onNext(response);
    observer.onCompleted();
  }

  static ChatResponse text(String text) {
    return ChatResponse.newBuilder().addChoices(Choice.newBuilder().setText(text)).build();
  }

  static ChatStreamResponse delta(String text) {
    return ChatStreamResponse.newBuilder().addChoices(ChoiceDelta.newBuilder().setText(text)).build();
  }

  /** An error as the services send it. */
  static StatusRuntimeException error(Status.Code code, String message, Message... details) {
    List<Any> packed = Arrays.stream(details).map(Any::pack).toList();
    var status = ai.triptych.client.details.Status.newBuilder().setCode(code.value()).setMessage(message).addAllDetails(packed);
    Metadata trailers = new Metadata();
    trailers.put(Headers.STATUS_DETAILS, status.build().toByteArray());
    return code.toStatus().withDescription(message).asRuntimeException(trailers);
  }

  private final class Recorder implements ServerInterceptor {
    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
      calls.add(headers);
      return next.startCall(
          new SimpleForwardingServerCall<>(call) {
            @Override
            public void close(Status status, Metadata ofHandler) {
              ofHandler.merge(trailers);
              super.close(status, ofHandler);
            }
          },
          headers);
    }
  }
}
