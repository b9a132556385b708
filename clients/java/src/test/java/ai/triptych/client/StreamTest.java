package ai.triptych.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import ai.triptych.client.errors.DeadlineExceededException;
import ai.triptych.client.errors.RequestAbortedException;
import ai.triptych.client.errors.ServiceUnavailableException;
import ai.triptych.client.errors.TriptychException;
import ai.triptych.v1.ChatRequest;
import ai.triptych.v1.ChatStreamResponse;
import ai.triptych.v1.ChoiceDelta;
import ai.triptych.v1.MediaReport;
import io.grpc.Status;
import io.grpc.stub.ServerCallStreamObserver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Streams: reading, cancellation, slow readers. */
public class StreamTest {
  private static final ChatRequest REQUEST = ChatRequest.newBuilder().addMessages(Messages.user("Hi")).build();

  private FakeFrontend frontend;
  private TriptychClient client;

  @Before
  public void start() throws Exception {
    frontend = new FakeFrontend();
    client = frontend.client();
  }

  @After
  public void stop() throws Exception {
    client.close();
    frontend.close();
  }

  private static void send(ServerCallStreamObserver<ChatStreamResponse> responses, String... texts) {
    for (String text : texts) responses.onNext(FakeFrontend.delta(text));
  }

  @Test
  public void givesEachResponseAndTheWhole() {
    frontend.trailers.put(Headers.MEDIA, MediaReport.newBuilder().setNumTokens(9).build().toByteArray());
    frontend.onChatStream =
        (request, responses) -> {
          send(responses, "a", "b");
          responses.onCompleted();
        };
    List<String> texts = new ArrayList<>();
    try (ChatStream stream = client.chatStream(REQUEST)) {
      for (ChatStreamResponse response : stream) {
        assertTrue(stream.trailingMedia().isEmpty());
        texts.add(response.getChoices(0).getText());
      }
      assertEquals(List.of("a", "b"), texts);
      assertEquals("ab", stream.response().getChoices(0).getText());
      assertEquals(9, stream.trailingMedia().get(0).getNumTokens());
      assertEquals(frontend.header("x-request-id"), stream.requestId());
      assertFalse(stream.hasNext());
      assertThrows(NoSuchElementException.class, stream::next);
    }
  }

  @Test
  public void givesTheTextOfOneChoice() {
    ChatStreamResponse mixed =
        ChatStreamResponse.newBuilder()
            .addChoices(ChoiceDelta.newBuilder().setReasoning("thinks"))
            .addChoices(ChoiceDelta.newBuilder().setText("a"))
            .addChoices(ChoiceDelta.newBuilder().setText(""))
            .addChoices(ChoiceDelta.newBuilder().setIndex(1).setText("other"))
            .addChoices(ChoiceDelta.newBuilder().setText("b"))
            .build();
    frontend.onChatStream = (request, responses) -> FakeFrontend.answer(responses, mixed);
    for (int index = 0; index < 2; index++) {
      List<String> texts = new ArrayList<>();
      try (ChatStream stream = client.chatStream(REQUEST)) {
        stream.textDeltas(index).forEach(texts::add);
      }
      assertEquals(index == 0 ? List.of("a", "b") : List.of("other"), texts);
    }
  }

  @Test
  public void throwsItsErrorAfterTheResponses() {
    frontend.onChatStream =
        (request, responses) -> {
          send(responses, "a", "b");
          responses.onError(Status.UNAVAILABLE.withDescription("gone").asRuntimeException());
        };
    try (ChatStream stream = client.chatStream(REQUEST)) {
      TriptychException error = assertThrows(ServiceUnavailableException.class, () -> stream.forEach(response -> {}));
      assertEquals("ab", stream.response().getChoices(0).getText());
      assertSame(error, assertThrows(TriptychException.class, stream::hasNext));
    }
    assertEquals("nothing is retried after the first response", 1, frontend.calls.size());
  }

  @Test
  public void cancelEndsTheCall() throws Exception {
    frontend.onChatStream = (request, responses) -> send(responses, "a", "b");
    try (ChatStream stream = client.chatStream(REQUEST)) {
      assertEquals("a", stream.next().getChoices(0).getText());
      assertTrue(stream.hasNext());
      stream.cancel();
      assertFalse(stream.hasNext());
      assertThrows(NoSuchElementException.class, stream::next);
      assertEquals("a", stream.response().getChoices(0).getText());
    }
    assertTrue(frontend.cancelled.await(2, TimeUnit.SECONDS));
  }

  @Test
  public void cancelEndsAWaitingReader() throws Exception {
    CountDownLatch started = new CountDownLatch(1);
    frontend.onChatStream = (request, responses) -> started.countDown();
    try (ChatStream stream = client.chatStream(REQUEST)) {
      Thread closer =
          new Thread(
              () -> {
                await(started);
                stream.cancel();
              });
      closer.start();
      assertFalse(stream.hasNext());
      closer.join();
    }
    assertTrue(frontend.cancelled.await(2, TimeUnit.SECONDS));
  }

  @Test
  public void closingTheClientEndsAWaitingReader() {
    frontend.onChatStream = (request, responses) -> client.close();
    try (ChatStream stream = client.chatStream(REQUEST)) {
      assertThrows(RequestAbortedException.class, stream::hasNext);
    }
  }

  @Test
  public void anInterruptedReaderCancels() throws Exception {
    Thread reader = Thread.currentThread();
    frontend.onChatStream = (request, responses) -> reader.interrupt();
    try (ChatStream stream = client.chatStream(REQUEST)) {
      assertThrows(RequestAbortedException.class, stream::hasNext);
      assertTrue("the flag stays set", Thread.interrupted());
      assertThrows(RequestAbortedException.class, stream::hasNext);
    }
    assertTrue(frontend.cancelled.await(2, TimeUnit.SECONDS));
  }

  @Test
  public void endsAtTheDeadline() {
    frontend.onChatStream = (request, responses) -> send(responses, "a");
    RequestOptions options = RequestOptions.builder().timeout(Duration.ofMillis(300)).build();
    try (ChatStream stream = client.chatStream(REQUEST, options)) {
      assertEquals("a", stream.next().getChoices(0).getText());
      assertThrows(DeadlineExceededException.class, stream::hasNext);
    }
  }

  @Test
  public void aSlowReaderMakesTheServerWait() throws Exception {
    int total = 128;
    ChatStreamResponse response = FakeFrontend.delta("x".repeat(256 << 10));
    AtomicInteger sent = new AtomicInteger();
    frontend.onChatStream =
        (request, responses) ->
            responses.setOnReadyHandler(
                () -> {
                  while (responses.isReady() && sent.get() < total) {
                    responses.onNext(response);
                    if (sent.incrementAndGet() == total) responses.onCompleted();
                  }
                });
    try (ChatStream stream = client.chatStream(REQUEST)) {
      stream.next();
      awaitSilence(sent);
      assertTrue("the client holds " + sent.get() + " responses that nobody reads", sent.get() < total / 2);
      int received = 1;
      for (; stream.hasNext(); received++) stream.next();
      assertEquals(total, received);
    }
  }

  /** Waits until the server has not sent anything for a while. */
  private static void awaitSilence(AtomicInteger sent) throws InterruptedException {
    for (int before = -1; before != sent.get(); ) {
      before = sent.get();
      Thread.sleep(400);
    }
  }

  private static void await(CountDownLatch latch) {
    try {
      assertTrue(latch.await(5, TimeUnit.SECONDS));
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }
}
