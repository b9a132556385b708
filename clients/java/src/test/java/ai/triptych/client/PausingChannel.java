package ai.triptych.client;

import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import java.util.concurrent.TimeUnit;

/** A channel without connections that counts how often it is told to connect at once. */
final class PausingChannel extends ManagedChannel {
  int numResets;

  private final ConnectivityState state;

  PausingChannel(ConnectivityState state) {
    this.state = state;
  }

  @Override
  public ConnectivityState getState(boolean requestConnection) {
    return state;
  }

  @Override
  public void resetConnectBackoff() {
    numResets++;
  }

  @Override
  public ManagedChannel shutdown() {
    return this;
  }

  @Override
  public ManagedChannel shutdownNow() {
    return this;
  }

  @Override
  public boolean isShutdown() {
    return false;
  }

  @Override
  public boolean isTerminated() {
    return false;
  }

  @Override
  public boolean awaitTermination(long timeout, TimeUnit unit) {
    return true;
  }

  @Override
  public <Q, A> ClientCall<Q, A> newCall(MethodDescriptor<Q, A> method, CallOptions options) {
    throw new UnsupportedOperationException();
  }

  @Override
  public String authority() {
    return "";
  }
}
