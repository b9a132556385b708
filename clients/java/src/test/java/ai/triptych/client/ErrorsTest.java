package ai.triptych.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import ai.triptych.client.errors.ContextLengthException;
import ai.triptych.client.errors.ErrorDetails;
import ai.triptych.client.errors.InternalException;
import ai.triptych.client.errors.QueueFullException;
import ai.triptych.client.errors.TriptychException;
import ai.triptych.v1.ChatRequest;
import com.google.protobuf.Duration;
import ai.triptych.client.details.ErrorInfo;
import ai.triptych.client.details.RequestInfo;
import ai.triptych.client.details.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.util.Map;
import java.util.Optional;
import org.junit.Test;

/** What a status of gRPC becomes. */
public class ErrorsTest {
  private static TriptychException received(StatusRuntimeException sent) {
    return Errors.of(sent.getStatus(), sent.getTrailers() == null ? new Metadata() : sent.getTrailers(), "sent-id");
  }

  private static TriptychException withReason(Status.Code code, String reason) {
    return received(FakeFrontend.error(code, "message", ErrorInfo.newBuilder().setReason(reason).build()));
  }

  @Test
  public void readsAllDetails() {
    ErrorInfo info =
        ErrorInfo.newBuilder()
            .setReason("CONTEXT_LENGTH_EXCEEDED")
            .putAllMetadata(Map.of("field", "messages", "limit", "2048", "value", "2100"))
            .build();
    RetryInfo retry = RetryInfo.newBuilder().setRetryDelay(Duration.newBuilder().setSeconds(2).setNanos(500_000_000)).build();
    RequestInfo request = RequestInfo.newBuilder().setRequestId("other-id").build();
    TriptychException error = received(FakeFrontend.error(Status.Code.INVALID_ARGUMENT, "too long", info, retry, request));
    assertEquals(ContextLengthException.class, error.getClass());
    assertEquals("ContextLengthError", error.contractName());
    assertEquals("too long", error.getMessage());
    assertEquals(Status.Code.INVALID_ARGUMENT, error.code());
    assertEquals("CONTEXT_LENGTH_EXCEEDED", error.reason());
    assertEquals("messages", error.field());
    assertEquals("2048", error.limit());
    assertEquals("2100", error.value());
    assertEquals(Optional.of(java.time.Duration.ofMillis(2500)), error.retryAfter());
    assertEquals("other-id", error.requestId());
    assertTrue(error.hasDetails());
    assertEquals(StatusRuntimeException.class, error.getCause().getClass());
  }

  @Test
  public void theReasonDecidesTheClass() {
    Map<String, String> classes =
        Map.ofEntries(
            Map.entry("INVALID_REQUEST", "InvalidRequestError"),
            Map.entry("CONTEXT_LENGTH_EXCEEDED", "ContextLengthError"),
            Map.entry("KV_CACHE_CAPACITY_EXCEEDED", "NeverFitsError"),
            Map.entry("MODEL_NOT_FOUND", "ModelNotFoundError"),
            Map.entry("MEDIA_NOT_FOUND", "MediaNotFoundError"),
            Map.entry("DUPLICATE_REQUEST", "DuplicateRequestError"),
            Map.entry("QUEUE_FULL", "QueueFullError"),
            Map.entry("SERVICE_UNAVAILABLE", "ServiceUnavailableError"),
            Map.entry("EMBEDDING_UNAVAILABLE", "EmbeddingUnavailableError"),
            Map.entry("ABORTED", "RequestAbortedError"),
            Map.entry("DEADLINE_EXCEEDED", "DeadlineExceededError"),
            Map.entry("UNAUTHENTICATED", "UnauthenticatedError"),
            Map.entry("PERMISSION_DENIED", "PermissionDeniedError"),
            Map.entry("UNIMPLEMENTED", "UnimplementedError"),
            Map.entry("INTERNAL", "InternalError"),
            Map.entry("STARTUP", "StartupError"),
            Map.entry("UNSUPPORTED_MODEL", "UnsupportedModelError"));
    classes.forEach(
        (reason, name) -> {
          TriptychException error = withReason(Status.Code.UNKNOWN, reason);
          assertEquals(name, error.contractName());
          assertEquals(name.replaceAll("Error$", "Exception"), error.getClass().getSimpleName());
        });
  }

  @Test
  public void theCodeDecidesTheClassOfANewReason() {
    TriptychException error = withReason(Status.Code.RESOURCE_EXHAUSTED, "OUT_OF_COFFEE");
    assertEquals(QueueFullException.class, error.getClass());
    assertEquals("OUT_OF_COFFEE", error.reason());
    for (Status.Code code : Status.Code.values()) assertFalse(withReason(code, "").contractName().isEmpty());
  }

  @Test
  public void anErrorOfTheTransportHasNoReason() {
    TriptychException error = received(Status.INTERNAL.asRuntimeException());
    assertEquals(InternalException.class, error.getClass());
    assertEquals("INTERNAL", error.getMessage());
    assertEquals("", error.reason());
    assertEquals("sent-id", error.requestId());
    assertEquals(Optional.empty(), error.retryAfter());
    assertFalse(error.hasDetails());
  }

  @Test
  public void tellsTheCauseOfTheTransport() {
    Status status = Status.UNAVAILABLE.withDescription("io exception").withCause(new java.io.IOException("refused"));
    assertEquals("io exception: refused", received(status.asRuntimeException()).getMessage());
  }

  @Test
  public void ignoresDetailsOfOthers() {
    Metadata trailers = new Metadata();
    trailers.put(Headers.STATUS_DETAILS, new byte[] {1, 2, 3});
    assertFalse(received(Status.INTERNAL.asRuntimeException(trailers)).hasDetails());
  }

  @Test
  public void aMessageThatIsTooLargeIsNoFullQueue() throws Exception {
    try (FakeFrontend frontend = new FakeFrontend();
        TriptychClient client = frontend.client()) {
      String large = "x".repeat(Channels.MAX_MESSAGE_BYTES);
      frontend.onChat = (request, answer) -> FakeFrontend.answer(answer, FakeFrontend.text(large));
      ChatRequest request = ChatRequest.getDefaultInstance();
      InternalException error = assertThrows(InternalException.class, () -> client.chat(request));
      assertEquals(Status.Code.RESOURCE_EXHAUSTED, error.code());
      assertEquals(1, frontend.calls.size());
    }
  }

  @Test
  public void canBeSerialized() throws Exception {
    ErrorDetails details = ErrorDetails.ofTransport(Status.Code.RESOURCE_EXHAUSTED, "full", "id");
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    new ObjectOutputStream(bytes).writeObject(TriptychException.of(details, null));
    Object read = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray())).readObject();
    assertEquals(details, ((QueueFullException) read).details());
  }
}
