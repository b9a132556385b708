package ai.triptych.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import ai.triptych.client.errors.InvalidRequestException;
import ai.triptych.client.errors.QueueFullException;
import ai.triptych.client.errors.ServiceUnavailableException;
import ai.triptych.v1.ChatRequest;
import ai.triptych.v1.ChatResponse;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.Map;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** What is tried again, and how often. */
public class RetryTest {
  private static final ChatRequest REQUEST = ChatRequest.newBuilder().addMessages(Messages.user("Hi")).build();

  private FakeFrontend frontend;

  @Before
  public void start() throws Exception {
    frontend = new FakeFrontend();
  }

  @After
  public void stop() throws Exception {
    frontend.close();
  }

  /** Fails the first calls. */
  private void failFirst(int number, Status status, String pushback) {
    frontend.onChat =
        (request, answer) -> {
          if (frontend.calls.size() > number) {
            FakeFrontend.answer(answer, FakeFrontend.text("at last"));
          } else {
            fail(answer, status, pushback);
          }
        };
  }

  private static void fail(StreamObserver<ChatResponse> answer, Status status, String pushback) {
    Metadata trailers = new Metadata();
    Metadata.Key<String> key = Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);
    if (!pushback.isEmpty()) trailers.put(key, pushback);
    answer.onError(status.asRuntimeException(trailers));
  }

  private String chat(RetryOptions retry) {
    try (TriptychClient client = frontend.clientBuilder().retry(retry).build()) {
      return client.chat(REQUEST).getChoices(0).getText();
    }
  }

  @Test
  public void retriesWhatIsUnavailable() {
    failFirst(3, Status.UNAVAILABLE, "");
    assertEquals("at last", chat(RetryOptions.defaults()));
    assertEquals(4, frontend.calls.size());
    String id = frontend.header("x-request-id");
    assertTrue("all attempts have one id", frontend.calls.stream().allMatch(call -> call.get(Headers.REQUEST_ID).equals(id)));
  }

  @Test
  public void makesFourAttemptsAtMost() {
    failFirst(9, Status.UNAVAILABLE, "");
    assertThrows(ServiceUnavailableException.class, () -> chat(RetryOptions.defaults()));
    assertEquals(4, frontend.calls.size());
  }

  @Test
  public void waitsForAFullQueueAsTheServerSays() {
    failFirst(1, Status.RESOURCE_EXHAUSTED, "700");
    long start = System.nanoTime();
    assertEquals("at last", chat(RetryOptions.defaults()));
    assertTrue(System.nanoTime() - start >= Duration.ofMillis(690).toNanos());
    assertEquals(2, frontend.calls.size());
  }

  @Test
  public void doesNotRetryWhereTheServerSaysSo() {
    failFirst(1, Status.RESOURCE_EXHAUSTED, "-1");
    assertThrows(QueueFullException.class, () -> chat(RetryOptions.defaults()));
    assertEquals(1, frontend.calls.size());
  }

  @Test
  public void doesNotRetryOtherErrors() {
    failFirst(1, Status.INVALID_ARGUMENT, "");
    assertThrows(InvalidRequestException.class, () -> chat(RetryOptions.defaults()));
    assertEquals(1, frontend.calls.size());
  }

  @Test
  public void retriesCanBeTurnedOff() {
    failFirst(1, Status.UNAVAILABLE, "");
    assertThrows(ServiceUnavailableException.class, () -> chat(RetryOptions.none()));
    assertEquals(1, frontend.calls.size());
  }

  @Test
  public void retriesALargeRequest() {
    failFirst(1, Status.UNAVAILABLE, "");
    ChatRequest large = REQUEST.toBuilder().addMessages(Messages.user("", Media.image(new byte[20 << 20]))).build();
    try (TriptychClient client = frontend.client()) {
      assertEquals("at last", client.chat(large).getChoices(0).getText());
    }
    assertEquals(2, frontend.calls.size());
  }

  @Test
  public void retriesAStreamBeforeItsFirstResponse() {
    frontend.onChatStream =
        (request, responses) -> {
          if (frontend.calls.size() < 3) {
            responses.onError(new StatusRuntimeException(Status.UNAVAILABLE));
          } else {
            FakeFrontend.answer(responses, FakeFrontend.delta("at last"));
          }
        };
    try (TriptychClient client = frontend.client();
        ChatStream stream = client.chatStream(REQUEST)) {
      assertEquals("at last", stream.next().getChoices(0).getText());
      assertFalse(stream.hasNext());
    }
    assertEquals(3, frontend.calls.size());
  }

  @Test
  public void checksItsOptions() {
    Duration second = Duration.ofSeconds(1);
    assertThrows(IllegalArgumentException.class, () -> RetryOptions.defaults().withMaxAttempts(6));
    assertThrows(IllegalArgumentException.class, () -> new RetryOptions(2, Duration.ZERO, second, 2));
    assertThrows(IllegalArgumentException.class, () -> new RetryOptions(2, second, second, Double.NaN));
  }

  @Test
  public void oneAttemptHasNoPolicy() {
    assertEquals(Map.of(), Channels.serviceConfig(Addresses.parse("a:1"), RetryOptions.none()));
  }
}
