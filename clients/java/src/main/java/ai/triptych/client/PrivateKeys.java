package ai.triptych.client;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.math.BigInteger;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Base64;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Reads private keys for gRPC.
 *
 * <p>gRPC for Java takes keys in PKCS #8 only ("BEGIN PRIVATE KEY"). Other languages take the forms of RSA and EC alone too, and
 * tools still write those. They are the inner part of PKCS #8, so they are put into the outer one here.
 */
final class PrivateKeys {
  private static final Pattern PEM = Pattern.compile("-----BEGIN (RSA |EC |)PRIVATE KEY-----([A-Za-z0-9+/=\\s]+)-----END");

  // Tags of ASN.1's DER.
  private static final int INTEGER = 0x02;
  private static final int OCTET_STRING = 0x04;
  private static final int SEQUENCE = 0x30;
  private static final int EC_PARAMETERS = 0xA0;

  /** INTEGER 0. */
  private static final byte[] VERSION = {INTEGER, 1, 0};

  /** OBJECT IDENTIFIER 1.2.840.113549.1.1.1 and NULL. */
  private static final byte[] RSA = {0x06, 9, 0x2A, (byte) 0x86, 0x48, (byte) 0x86, (byte) 0xF7, 0x0D, 1, 1, 1, 0x05, 0};

  /** OBJECT IDENTIFIER 1.2.840.10045.2.1, which the curve follows. */
  private static final byte[] EC = {0x06, 7, 0x2A, (byte) 0x86, 0x48, (byte) 0xCE, 0x3D, 2, 1};

  private PrivateKeys() {}

  /** The key in PKCS #8, as PEM. Throws IllegalArgumentException if the file has none. */
  static InputStream open(Path file) throws IOException {
    byte[] bytes = Files.readAllBytes(file);
    Matcher pem = PEM.matcher(new String(bytes, StandardCharsets.ISO_8859_1));
    if (!pem.find()) throw new IllegalArgumentException(file + " has no private key, or an encrypted one");
    if (pem.group(1).isEmpty()) return new ByteArrayInputStream(bytes);
    try {
      byte[] key = Base64.getMimeDecoder().decode(pem.group(2));
      byte[] algorithm = pem.group(1).equals("RSA ") ? RSA : concatenated(EC, curve(key));
      byte[] wrapped = der(SEQUENCE, VERSION, der(SEQUENCE, algorithm), der(OCTET_STRING, key));
      String text = Base64.getMimeEncoder().encodeToString(wrapped);
      String result = "-----BEGIN PRIVATE KEY-----\n" + text + "\n-----END PRIVATE KEY-----\n";
      return new ByteArrayInputStream(result.getBytes(StandardCharsets.ISO_8859_1));
    } catch (BufferUnderflowException | IllegalArgumentException e) {
      throw new IllegalArgumentException(file + " has no valid private key", e);
    }
  }

  /** The curve of SEQUENCE {INTEGER, OCTET STRING, [0] curve, ...}, as RFC 5915 has it. */
  private static byte[] curve(byte[] key) {
    ByteBuffer fields = content(ByteBuffer.wrap(key), SEQUENCE);
    content(fields, INTEGER);
    content(fields, OCTET_STRING);
    ByteBuffer curve = content(fields, EC_PARAMETERS);
    byte[] bytes = new byte[curve.remaining()];
    curve.get(bytes);
    return bytes;
  }

  /** Takes the next element, and gives what is in it. */
  private static ByteBuffer content(ByteBuffer in, int tag) {
    if ((in.get() & 0xFF) != tag) throw new IllegalArgumentException("not the expected element");
    int length = in.get() & 0xFF;
    if (length >= 0x80) {
      int numBytes = length & 0x7F;
      length = 0;
      for (int i = 0; i < numBytes; i++) length = length << 8 | in.get() & 0xFF;
    }
    if (length < 0 || length > in.remaining()) throw new BufferUnderflowException();
    ByteBuffer content = in.slice().limit(length);
    in.position(in.position() + length);
    return content;
  }

  /** An element. Its length has as few bytes as it can, which DER demands. */
  private static byte[] der(int tag, byte[]... parts) {
    byte[] content = concatenated(parts);
    byte[] length = BigInteger.valueOf(content.length).toByteArray();
    if (content.length >= 0x80) {
      if (length[0] == 0) length = Arrays.copyOfRange(length, 1, length.length); // BigInteger's sign
      length = concatenated(new byte[] {(byte) (0x80 | length.length)}, length);
    }
    return concatenated(new byte[] {(byte) tag}, length, content);
  }

  private static byte[] concatenated(byte[]... parts) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    for (byte[] part : parts) out.writeBytes(part);
    return out.toByteArray();
  }
}
