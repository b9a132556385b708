package ai.triptych.client;

import io.grpc.Attributes;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.NameResolverRegistry;
import io.grpc.Status;
import io.grpc.SynchronizationContext;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Executor;

/**
 * Resolves a list of addresses: {@code triptych:///a:50051,b:50051}. gRPC for Java has no name for several hosts.
 *
 * <p>Each address gives its own authority to its connections, so that the certificate of each server is checked against the
 * name of its own host.
 */
final class AddressListResolver extends NameResolver {
  private static final String SCHEME = "triptych";

  private final List<Addresses.HostPort> addresses;
  private final Executor executor;
  private final SynchronizationContext context;

  // Both are used in the synchronization context only.
  private Listener listener;
  private boolean resolving;

  private AddressListResolver(List<Addresses.HostPort> addresses, Executor executor, SynchronizationContext context) {
    this.addresses = addresses;
    this.executor = executor;
    this.context = context;
  }

  /** The target of a channel to these addresses. */
  static String target(List<String> addresses) {
    Registration.register();
    try {
      return new URI(SCHEME, "", "/" + String.join(",", addresses), null).toString();
    } catch (URISyntaxException e) {
      throw new IllegalArgumentException(e);
    }
  }

  @Override
  public String getServiceAuthority() {
    return addresses.get(0).authority();
  }

  /** Takes the older kind of listener: what the newer one is told has changed its form between releases of gRPC. */
  @Override
  public void start(Listener listener) {
    this.listener = listener;
    refresh();
  }

  @Override
  public void refresh() {
    if (listener == null || resolving) return;
    resolving = true;
    executor.execute(this::resolve);
  }

  @Override
  public void shutdown() {
    listener = null;
  }

  /** Look-ups may take long. A host without an address must not keep the others from working. */
  private void resolve() {
    List<EquivalentAddressGroup> groups = new ArrayList<>();
    Status error = Status.UNAVAILABLE;
    for (Addresses.HostPort address : addresses) {
      try {
        groups.addAll(lookUp(address));
      } catch (UnknownHostException e) {
        error = Status.UNAVAILABLE.withDescription("no address is known for the host " + address.name()).withCause(e);
      }
    }
    Status lastError = error;
    context.execute(() -> publish(groups, lastError));
  }

  private void publish(List<EquivalentAddressGroup> groups, Status error) {
    resolving = false;
    if (listener == null) return;
    if (groups.isEmpty()) {
      listener.onError(error);
    } else {
      listener.onAddresses(groups, Attributes.EMPTY);
    }
  }

  private static List<EquivalentAddressGroup> lookUp(Addresses.HostPort address) throws UnknownHostException {
    Attributes attributes =
        Attributes.newBuilder().set(EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE, address.authority()).build();
    return Arrays.stream(InetAddress.getAllByName(address.name()))
        .map(ip -> new EquivalentAddressGroup(new InetSocketAddress(ip, address.port()), attributes))
        .toList();
  }

  /** Makes the scheme known to gRPC, once in this process. */
  private static final class Registration {
    static {
      NameResolverRegistry.getDefaultRegistry().register(new Provider());
    }

    static void register() {} // loading the class does it
  }

  private static final class Provider extends NameResolverProvider {
    @Override
    protected boolean isAvailable() {
      return true;
    }

    @Override
    protected int priority() {
      return 0; // never the default
    }

    @Override
    public String getDefaultScheme() {
      return SCHEME;
    }

    @Override
    public NameResolver newNameResolver(URI target, Args args) {
      if (!SCHEME.equals(target.getScheme())) return null;
      List<Addresses.HostPort> addresses =
          Arrays.stream(target.getPath().substring(1).split(",")).map(Addresses::hostPort).toList();
      Executor executor = Objects.requireNonNull(args.getOffloadExecutor(), "executor");
      return new AddressListResolver(addresses, executor, args.getSynchronizationContext());
    }
  }
}
