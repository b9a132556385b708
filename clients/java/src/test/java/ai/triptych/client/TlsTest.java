package ai.triptych.client;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import ai.triptych.client.errors.ServiceUnavailableException;
import ai.triptych.v1.ChatRequest;
import io.grpc.ServerCredentials;
import io.grpc.TlsServerCredentials;
import java.io.File;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.junit.AfterClass;
import org.junit.Assume;
import org.junit.BeforeClass;
import org.junit.ClassRule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** TLS, with certificates of an authority that the program openssl makes. */
public class TlsTest {
  @ClassRule public static final TemporaryFolder FOLDER = new TemporaryFolder();

  private static final ChatRequest REQUEST = ChatRequest.newBuilder().addMessages(Messages.user("Hi")).build();

  /** An authority, and certificates of a server named "localhost" and of a client. */
  private static final String SCRIPT =
      """
      new="openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
      $new -x509 -days 2 -subj /CN=authority -keyout authority.key -out authority.pem
      echo "subjectAltName=DNS:localhost" > server.ext
      for name in server client; do
        $new -subj /CN=$name -keyout $name.key -out $name.csr
        openssl pkey -traditional -in $name.key -out $name.traditional.key
        openssl x509 -req -days 2 -CA authority.pem -CAkey authority.key -CAcreateserial -extfile server.ext \\
          -in $name.csr -out $name.pem
      done
      """;

  private static FakeFrontend frontend;
  private static FakeFrontend asking;

  @BeforeClass
  public static void start() throws Exception {
    Assume.assumeTrue("openssl is not installed", run("command -v openssl") == 0);
    assertEquals(0, run(SCRIPT));
    frontend = new FakeFrontend(0, credentials(TlsServerCredentials.ClientAuth.NONE));
    asking = new FakeFrontend(0, credentials(TlsServerCredentials.ClientAuth.REQUIRE));
  }

  @AfterClass
  public static void stop() throws Exception {
    if (frontend != null) frontend.close();
    if (asking != null) asking.close();
  }

  private static int run(String script) throws Exception {
    return new ProcessBuilder("sh", "-ec", script)
        .directory(FOLDER.getRoot())
        .redirectErrorStream(true)
        .redirectOutput(new File(FOLDER.getRoot(), "log"))
        .start()
        .waitFor();
  }

  private static ServerCredentials credentials(TlsServerCredentials.ClientAuth ofClient) throws Exception {
    return TlsServerCredentials.newBuilder()
        .keyManager(file("server.pem").toFile(), file("server.key").toFile())
        .trustManager(file("authority.pem").toFile())
        .clientAuth(ofClient)
        .build();
  }

  private static Path file(String name) {
    return FOLDER.getRoot().toPath().resolve(name);
  }

  private static TlsOptions.Builder trusting() {
    return TlsOptions.builder().rootCertificates(file("authority.pem"));
  }

  private static String chat(String address, TlsOptions tls) {
    try (TriptychClient client = TriptychClient.builder(Map.of()).address(address).tls(tls).build()) {
      return client.chat(REQUEST).getChoices(0).getText();
    }
  }

  private static String localhost(FakeFrontend server) {
    return "localhost:" + server.server.getPort();
  }

  @Test
  public void trustsAPrivateAuthority() {
    assertEquals("hi", chat(localhost(frontend), trusting().build()));
  }

  @Test
  public void refusesAnotherNameOrAuthority() {
    assertThrows(ServiceUnavailableException.class, () -> chat(frontend.address(), trusting().build()));
    assertThrows(ServiceUnavailableException.class, () -> chat(localhost(frontend), TlsOptions.defaults()));
  }

  @Test
  public void takesTheNameThatItIsTold() {
    assertEquals("hi", chat(frontend.address(), trusting().serverName("localhost").build()));
  }

  @Test
  public void checksEachOfSeveralAddressesAgainstItsOwnHost() {
    // The first address has the same server, under a name that its certificate does not have.
    String addresses = frontend.address() + "," + localhost(frontend);
    for (int i = 0; i < 3; i++) assertEquals("hi", chat(addresses, trusting().build()));
    String wrong = frontend.address() + "," + frontend.address();
    assertThrows(ServiceUnavailableException.class, () -> chat(wrong, trusting().build()));
  }

  @Test
  public void showsItsOwnCertificate() {
    assertThrows(ServiceUnavailableException.class, () -> chat(localhost(asking), trusting().build()));
    TlsOptions own = trusting().certificate(file("client.pem"), file("client.key")).build();
    assertEquals("hi", chat(localhost(asking), own));
  }

  @Test
  public void takesAKeyOfTheEcForm() throws Exception {
    assertTrue(Files.readString(file("client.traditional.key")).contains("BEGIN EC PRIVATE KEY"));
    TlsOptions own = trusting().certificate(file("client.pem"), file("client.traditional.key")).build();
    assertEquals("hi", chat(localhost(asking), own));
  }

  @Test
  public void takesAKeyOfTheRsaForm() throws Exception {
    assertEquals(0, run("openssl genrsa -traditional -out rsa.traditional.key 2048"));
    assertEquals(0, run("openssl pkcs8 -topk8 -nocrypt -in rsa.traditional.key -out rsa.key"));
    String converted = new String(PrivateKeys.open(file("rsa.traditional.key")).readAllBytes(), StandardCharsets.US_ASCII);
    assertEquals(Files.readString(file("rsa.key")).replaceAll("\\s", ""), converted.replaceAll("\\s", ""));
  }

  @Test
  public void refusesAFileWithoutAKey() throws Exception {
    Path broken = file("broken.key");
    for (String content : new String[] {"nothing", "-----BEGIN EC PRIVATE KEY-----\nMIIB\n-----END EC PRIVATE KEY-----\n"}) {
      Files.writeString(broken, content);
      TlsOptions tls = trusting().certificate(file("client.pem"), broken).build();
      assertThrows(IllegalArgumentException.class, () -> chat(localhost(asking), tls));
    }
  }

  @Test
  public void aMissingFileIsNamed() {
    TlsOptions missing = TlsOptions.builder().rootCertificates(file("missing.pem")).build();
    UncheckedIOException error = assertThrows(UncheckedIOException.class, () -> chat("a:1", missing));
    assertTrue(error.getMessage(), error.getMessage().contains("missing.pem"));
  }
}
