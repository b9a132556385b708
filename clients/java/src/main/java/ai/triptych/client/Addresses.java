package ai.triptych.client;

import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Addresses of frontends, as a user gives them: one target of gRPC, or several of host:port, separated by commas. */
final class Addresses {
  /** One of several addresses. */
  record HostPort(String host, int port) {
    /** As in the authority of a URI: an IPv6 address keeps its brackets. */
    String authority() {
      return host + ":" + port;
    }

    /** As {@link java.net.InetAddress} takes it. */
    String name() {
      return host.startsWith("[") ? host.substring(1, host.length() - 1) : host;
    }
  }

  private static final Pattern HOST_PORT = Pattern.compile("(\\[[0-9A-Fa-f:.%]+]|[^\\s:/@\\[\\]]+):([0-9]{1,5})");

  private final List<String> texts;

  private Addresses(List<String> texts) {
    this.texts = texts;
  }

  static Addresses parse(String text) {
    List<String> texts = Arrays.stream(text.split(",", -1)).map(String::strip).toList();
    if (texts.contains("")) throw new IllegalArgumentException("the address \"" + text + "\" is empty, or a part of it is");
    if (texts.size() > 1) texts.forEach(Addresses::hostPort);
    return new Addresses(texts);
  }

  /** Splits one of several addresses. Throws IllegalArgumentException if it is not host:port. */
  static HostPort hostPort(String address) {
    Matcher parts = HOST_PORT.matcher(address);
    int port = parts.matches() ? Integer.parseInt(parts.group(2)) : 0;
    if (port < 1 || port > 65535) throw new IllegalArgumentException("the address \"" + address + "\" is not host:port");
    return new HostPort(parts.group(1), port);
  }

  boolean areSeveral() {
    return texts.size() > 1;
  }

  /** What gRPC connects to. */
  String target() {
    return areSeveral() ? AddressListResolver.target(texts) : texts.get(0);
  }
}
