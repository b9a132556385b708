package ai.triptych.client;

import io.grpc.ChannelCredentials;
import io.grpc.TlsChannelCredentials;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Objects;
import java.util.Optional;

/** TLS, by files in PEM. They are read when the client is made. */
public final class TlsOptions {
  private final Path rootCertificates;
  private final Path certificate;
  private final Path privateKey;
  private final String serverName;

  private TlsOptions(Builder builder) {
    rootCertificates = builder.rootCertificates;
    certificate = builder.certificate;
    privateKey = builder.privateKey;
    serverName = builder.serverName;
  }

  /**
   * TLS with the authorities that Java trusts.
   *
   * @return the options
   */
  public static TlsOptions defaults() {
    return builder().build();
  }

  /**
   * Starts new options.
   *
   * @return a builder
   */
  public static Builder builder() {
    return new Builder();
  }

  Optional<String> serverName() {
    return Optional.ofNullable(serverName);
  }

  ChannelCredentials credentials() throws IOException {
    TlsChannelCredentials.Builder credentials = TlsChannelCredentials.newBuilder();
    if (rootCertificates != null) credentials.trustManager(rootCertificates.toFile());
    if (certificate != null) {
      try (InputStream chain = Files.newInputStream(certificate);
          InputStream key = PrivateKeys.open(privateKey)) {
        credentials.keyManager(chain, key);
      }
    }
    return credentials.build();
  }

  /** Builds {@link TlsOptions}. */
  public static final class Builder {
    private Path rootCertificates;
    private Path certificate;
    private Path privateKey;
    private String serverName;

    private Builder() {}

    /**
     * Certificates of the authorities that may vouch for the server. By default they are those that Java trusts.
     *
     * @param file in PEM
     * @return this builder
     */
    public Builder rootCertificates(Path file) {
      rootCertificates = Objects.requireNonNull(file, "file");
      return this;
    }

    /**
     * The client's own certificate and key, for servers that ask for them (mTLS).
     *
     * @param certificate the certificate and those that vouch for it, in PEM
     * @param privateKey the key of the certificate, in PEM and not encrypted
     * @return this builder
     */
    public Builder certificate(Path certificate, Path privateKey) {
      this.certificate = Objects.requireNonNull(certificate, "certificate");
      this.privateKey = Objects.requireNonNull(privateKey, "privateKey");
      return this;
    }

    /**
     * Name in the server's certificate, if it is not the host of the address.
     *
     * @param serverName the name
     * @return this builder
     */
    public Builder serverName(String serverName) {
      this.serverName = Objects.requireNonNull(serverName, "serverName");
      return this;
    }

    /**
     * Makes the options.
     *
     * @return the options
     */
    public TlsOptions build() {
      return new TlsOptions(this);
    }
  }
}
