package ai.triptych.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import ai.triptych.client.errors.DeadlineExceededException;
import ai.triptych.client.errors.InvalidRequestException;
import ai.triptych.client.errors.RequestAbortedException;
import ai.triptych.v1.ChatRequest;
import ai.triptych.v1.MediaReport;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Calls that answer once, and what each call sends. */
public class CallsTest {
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

  @Test
  public void answers() {
    frontend.onChat = (request, answer) -> FakeFrontend.answer(answer, FakeFrontend.text(request.getModel()));
    try (TriptychClient client = frontend.client()) {
      ChatRequest request = REQUEST.toBuilder().setModel("m").build();
      assertEquals("m", client.chat(request).getChoices(0).getText());
      assertEquals("m", client.chat(request).getChoices(0).getText());
    }
  }

  @Test
  public void sendsTheKey() {
    try (TriptychClient client = frontend.clientBuilder().apiKey("secret").build()) {
      client.chat(REQUEST);
    }
    assertEquals("Bearer secret", frontend.header("authorization"));
    try (TriptychClient client = frontend.client()) {
      client.chat(REQUEST);
    }
    assertNull(frontend.header("authorization"));
  }

  @Test
  public void sendsARequestIdWithEachCall() {
    try (TriptychClient client = frontend.client()) {
      client.chat(REQUEST, RequestOptions.builder().requestId("my-id").build());
      assertEquals("my-id", frontend.header("x-request-id"));
      client.chat(REQUEST);
      String first = frontend.header("x-request-id");
      assertTrue(first, first.matches("[0-9a-f]{32}"));
      client.chat(REQUEST);
      assertNotEquals(first, frontend.header("x-request-id"));
    }
  }

  @Test
  public void sendsMetadata() {
    RequestOptions options =
        RequestOptions.builder().metadata("tracestate", "a=b").metadata("blob-bin", new byte[] {0, (byte) 255}).build();
    try (TriptychClient client = frontend.client()) {
      client.chat(REQUEST, options);
      client.chat(REQUEST, options); // the options were not used up
    }
    assertEquals("a=b", frontend.header("tracestate"));
    byte[] blob = frontend.calls.get(1).get(Metadata.Key.of("blob-bin", Metadata.BINARY_BYTE_MARSHALLER));
    assertEquals(2, blob.length);
  }

  @Test
  public void refusesMetadataThatCannotBeSent() {
    RequestOptions.Builder options = RequestOptions.builder();
    assertThrows(IllegalArgumentException.class, () -> options.requestId("a\nb"));
    assertThrows(IllegalArgumentException.class, () -> options.metadata("name", "ä"));
    assertThrows(IllegalArgumentException.class, () -> options.metadata("two words", "a"));
    TriptychClientBuilder builder = frontend.clientBuilder().apiKey("secret\n");
    IllegalArgumentException error = assertThrows(IllegalArgumentException.class, builder::build);
    assertFalse(error.getMessage(), error.getMessage().contains("secret"));
  }

  @Test
  public void endsAtTheDeadline() throws Exception {
    frontend.onChat = (request, answer) -> {};
    try (TriptychClient client = frontend.clientBuilder().timeout(Duration.ofMillis(200)).build()) {
      DeadlineExceededException error = assertThrows(DeadlineExceededException.class, () -> client.chat(REQUEST));
      assertEquals(Status.Code.DEADLINE_EXCEEDED, error.code());
      assertFalse(error.hasDetails());
      assertTrue(frontend.cancelled.await(2, TimeUnit.SECONDS));
    }
  }

  @Test
  public void theCallsTimeoutGoesBeforeTheClients() {
    RequestOptions past = RequestOptions.builder().timeout(Duration.ofSeconds(-1)).build();
    RequestOptions never = RequestOptions.builder().timeout(ChronoUnit.FOREVER.getDuration()).build();
    try (TriptychClient client = frontend.clientBuilder().timeout(Duration.ofNanos(1)).build()) {
      assertEquals(1, client.chat(REQUEST, never).getChoicesCount());
      assertNull(frontend.header("grpc-timeout"));
      assertThrows(DeadlineExceededException.class, () -> client.chat(REQUEST, past));
      assertThrows(DeadlineExceededException.class, () -> client.chat(REQUEST));
    }
  }

  @Test
  public void anInterruptedThreadCancelsItsCall() throws Exception {
    Thread caller = Thread.currentThread();
    frontend.onChat = (request, answer) -> caller.interrupt();
    try (TriptychClient client = frontend.client()) {
      RequestAbortedException error = assertThrows(RequestAbortedException.class, () -> client.chat(REQUEST));
      assertTrue("the flag stays set", Thread.interrupted());
      assertEquals(Status.Code.CANCELLED, error.code());
      assertTrue(frontend.cancelled.await(2, TimeUnit.SECONDS));
    }
  }

  @Test
  public void closeEndsCalls() {
    TriptychClient client = frontend.client();
    frontend.onChat = (request, answer) -> client.close();
    RequestAbortedException error = assertThrows(RequestAbortedException.class, () -> client.chat(REQUEST));
    assertEquals(Status.Code.CANCELLED, error.code());
    assertThrows(IllegalStateException.class, () -> client.chat(REQUEST));
  }

  @Test
  public void refusesARequestThatIsTooLarge() {
    ChatRequest large = REQUEST.toBuilder().addMessages(Messages.user("", Media.image(new byte[64 << 20]))).build();
    try (TriptychClient client = frontend.client()) {
      InvalidRequestException error = assertThrows(InvalidRequestException.class, () -> client.chat(large));
      assertEquals(String.valueOf(64 << 20), error.limit());
      assertEquals(String.valueOf(large.getSerializedSize()), error.value());
      assertTrue(frontend.calls.isEmpty());
    }
  }

  @Test
  public void handsOutTrailingMetadata() {
    frontend.trailers.put(Headers.MEDIA, MediaReport.newBuilder().setNumTokens(9).build().toByteArray());
    frontend.trailers.put(Headers.MEDIA, new byte[] {1}); // not a report
    List<MediaReport> reports = new ArrayList<>();
    RequestOptions options = RequestOptions.builder().onTrailers(trailers -> reports.addAll(Media.reports(trailers))).build();
    try (TriptychClient client = frontend.client()) {
      client.chat(REQUEST, options);
    }
    assertEquals(1, reports.size());
    assertEquals(9, reports.get(0).getNumTokens());
  }

  @Test
  public void interceptorsSeeCallsInTheirOrder() {
    List<String> seen = new ArrayList<>();
    try (TriptychClient client = frontend.clientBuilder().interceptors(named("a", seen), named("b", seen)).build()) {
      client.chat(REQUEST);
    }
    assertEquals(List.of("a", "b"), seen);
  }

  private static ClientInterceptor named(String name, List<String> seen) {
    return new ClientInterceptor() {
      @Override
      public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
        seen.add(name);
        return next.newCall(method, options);
      }
    };
  }
}
