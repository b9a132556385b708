package ai.triptych.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import ai.triptych.client.errors.ServiceUnavailableException;
import ai.triptych.v1.ChatRequest;
import ai.triptych.v1.GenerationServiceGrpc;
import io.grpc.ConnectivityState;
import io.grpc.InsecureServerCredentials;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.junit.Test;

/** Where the client connects, and what happens if nobody is there. */
public class ConnectionTest {
  private static final ChatRequest REQUEST = ChatRequest.newBuilder().addMessages(Messages.user("Hi")).build();

  @Test
  public void takesItsDefaultsFromTheEnvironment() throws Exception {
    try (FakeFrontend frontend = new FakeFrontend()) {
      Map<String, String> environment = Map.of("TRIPTYCH_ADDRESS", frontend.address(), "TRIPTYCH_API_KEY", "from-env");
      try (TriptychClient client = TriptychClient.builder(environment).build()) {
        client.chat(REQUEST);
      }
      assertEquals("Bearer from-env", frontend.header("authorization"));
      try (TriptychClient client = TriptychClient.builder(environment).apiKey("from-code").build()) {
        client.chat(REQUEST);
      }
      assertEquals("Bearer from-code", frontend.header("authorization"));
      try (TriptychClient client = TriptychClient.builder(environment).apiKey("").build()) {
        client.chat(REQUEST);
      }
      assertNull(frontend.header("authorization"));
    }
  }

  @Test
  public void theLastDefaultIsThePortOfTheFrontend() {
    for (Map<String, String> environment : List.of(Map.<String, String>of(), Map.of("TRIPTYCH_ADDRESS", ""))) {
      try (TriptychClient client = TriptychClient.builder(environment).build()) {
        assertEquals("127.0.0.1:50051", client.channel().authority());
      }
    }
  }

  @Test
  public void refusesAddressesThatItCannotUse() {
    for (String address : new String[] {"", " ", "a:1,", "a,b", "a:1,http://b:2", "a:1,b:0", "a:1,::1:2", "a:1,b:70000"}) {
      TriptychClientBuilder builder = TriptychClient.builder(Map.of()).address(address);
      assertThrows(address, IllegalArgumentException.class, builder::build);
    }
  }

  @Test
  public void readsAddresses() {
    assertEquals("dns:///a:1", Addresses.parse(" dns:///a:1 ").target());
    Addresses several = Addresses.parse("a:1, [::1]:2");
    assertTrue(several.areSeveral());
    assertTrue(several.target(), several.target().startsWith("triptych:///a:1,"));
    assertEquals("::1", Addresses.hostPort("[::1]:2").name());
  }

  @Test
  public void usesSeveralAddressesInTurn() throws Exception {
    try (FakeFrontend first = new FakeFrontend();
        FakeFrontend second = new FakeFrontend()) {
      int port = second.server.getPort();
      String addresses = first.address() + ", localhost:" + port;
      try (TriptychClient client = TriptychClient.builder(Map.of()).address(addresses).build()) {
        warmUp(client, first, second);
        int before = first.calls.size();
        for (int i = 0; i < 10; i++) client.chat(REQUEST);
        assertEquals(5, first.calls.size() - before, 1);
        second.stop();
        for (int i = 0; i < 10; i++) client.chat(REQUEST);
        // The channel is ready all the time, and has to find out by itself that the second server is back.
        for (int i = 0; i < 10; i++) tryToChat(client, Duration.ofMillis(200));
        try (FakeFrontend again = new FakeFrontend(port, InsecureServerCredentials.create())) {
          assertTrue("the client did not connect again", isCalledWithin(Duration.ofSeconds(5), again, client));
        }
      }
    }
  }

  /** The first connection that is ready gets all calls until the second one is. */
  private static void warmUp(TriptychClient client, FakeFrontend... frontends) throws InterruptedException {
    for (int i = 0; i < 100; i++) {
      client.chat(REQUEST);
      boolean allWereCalled = true;
      for (FakeFrontend frontend : frontends) allWereCalled &= !frontend.calls.isEmpty();
      if (allWereCalled) return;
      Thread.sleep(20);
    }
    throw new AssertionError("one address gets no calls");
  }

  @Test
  public void anAddressWithoutAServerDoesNotMatter() throws Exception {
    try (FakeFrontend frontend = new FakeFrontend()) {
      String addresses = "127.0.0.1:1,nobody.invalid:2," + frontend.address();
      try (TriptychClient client = TriptychClient.builder(Map.of()).address(addresses).build()) {
        for (int i = 0; i < 10; i++) client.chat(REQUEST);
      }
      assertEquals(10, frontend.calls.size());
    }
  }

  @Test
  public void tellsThatNobodyAnswers() {
    for (String address : new String[] {"127.0.0.1:1", "127.0.0.1:1,localhost:1", "nobody.invalid:1,nobody.invalid:2"}) {
      try (TriptychClient client = TriptychClient.builder(Map.of()).address(address).build()) {
        ServiceUnavailableException error = assertThrows(ServiceUnavailableException.class, () -> client.chat(REQUEST));
        assertTrue(error.getMessage(), error.getMessage().matches("(?s).*(refused|no address is known).*"));
      }
    }
  }

  @Test
  public void findsAServerThatIsStartedAgain() throws Exception {
    FakeFrontend frontend = new FakeFrontend();
    int port = frontend.server.getPort();
    try (TriptychClient client = frontend.client()) {
      client.chat(REQUEST);
      frontend.stop();
      for (int i = 0; i < 4; i++) tryToChat(client, Duration.ofMillis(300));
      try (FakeFrontend again = new FakeFrontend(port, InsecureServerCredentials.create())) {
        assertTrue("the client did not connect again", isCalledWithin(Duration.ofSeconds(5), again, client));
      }
    }
  }

  private static boolean isCalledWithin(Duration time, FakeFrontend frontend, TriptychClient client) throws Exception {
    long deadline = System.nanoTime() + time.toNanos();
    while (frontend.calls.isEmpty() && System.nanoTime() < deadline) tryToChat(client, Duration.ofMillis(50));
    return !frontend.calls.isEmpty();
  }

  private static void tryToChat(TriptychClient client, Duration pause) throws InterruptedException {
    try {
      client.chat(REQUEST);
    } catch (ServiceUnavailableException e) {
      // the caller looks at the servers
    }
    Thread.sleep(pause.toMillis());
  }

  /** gRPC's own pauses grow slowly, so the tests with servers cannot show that they are cut short. */
  @Test
  public void cutsThePausesOfGrpcShort() throws Exception {
    PausingChannel lost = new PausingChannel(ConnectivityState.TRANSIENT_FAILURE);
    PausingChannel ready = new PausingChannel(ConnectivityState.READY);
    PausingChannel partlyLost = new PausingChannel(ConnectivityState.READY);
    List<Connection> connections =
        List.of(
            new Connection(lost, lost, false, null),
            new Connection(ready, ready, false, null),
            new Connection(partlyLost, partlyLost, true, null));
    connections.forEach(Connection::reconnect);
    assertEquals(List.of(0, 0, 0), List.of(lost.numResets, ready.numResets, partlyLost.numResets));
    Thread.sleep(2100);
    for (int i = 0; i < 3; i++) connections.forEach(Connection::reconnect);
    assertEquals(List.of(1, 0, 1), List.of(lost.numResets, ready.numResets, partlyLost.numResets));
  }

  @Test
  public void theChannelServesStubs() throws Exception {
    try (FakeFrontend frontend = new FakeFrontend();
        TriptychClient client = frontend.clientBuilder().apiKey("secret").build()) {
      GenerationServiceGrpc.newFutureStub(client.channel()).chat(REQUEST).get();
      assertEquals("Bearer secret", frontend.header("authorization"));
    }
  }
}
