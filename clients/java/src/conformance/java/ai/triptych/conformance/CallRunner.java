package ai.triptych.conformance;

import ai.triptych.client.ChatStream;
import ai.triptych.client.CompleteStream;
import ai.triptych.client.Media;
import ai.triptych.client.RequestOptions;
import ai.triptych.client.ResponseStream;
import ai.triptych.client.TlsOptions;
import ai.triptych.client.TriptychClient;
import ai.triptych.client.TriptychClientBuilder;
import ai.triptych.client.errors.TriptychException;
import ai.triptych.conformance.v1.Call;
import ai.triptych.conformance.v1.Outcome;
import ai.triptych.conformance.v1.Tls;
import ai.triptych.v1.RequestError;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** Makes one call, as it is told to. */
final class CallRunner {
  /** When a call is cancelled that is to be cancelled before its first response. */
  private static final long CANCEL_AFTER_MS = 300;

  private final Call call;
  private final Outcome.Builder outcome = Outcome.newBuilder();
  private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
  private volatile boolean isCancelled;

  CallRunner(Call call) {
    this.call = call;
    outcome.setName(call.getName());
  }

  Outcome run() {
    try (TriptychClient client = client()) {
      make(client);
    } catch (TriptychException e) {
      if (!isCancelled) tell(e);
    } finally {
      timer.shutdownNow();
      Thread.interrupted(); // by the timer, if the call has ended meanwhile
    }
    return outcome.build();
  }

  private TriptychClient client() {
    TriptychClientBuilder builder = TriptychClient.builder().address(call.getAddress()).apiKey(call.getApiKey());
    if (call.hasTls()) builder.tls(tls(call.getTls()));
    return builder.build();
  }

  private static TlsOptions tls(Tls paths) {
    TlsOptions.Builder tls = TlsOptions.builder();
    if (!paths.getRootCertificates().isEmpty()) tls.rootCertificates(Path.of(paths.getRootCertificates()));
    if (!paths.getCertificate().isEmpty()) tls.certificate(Path.of(paths.getCertificate()), Path.of(paths.getPrivateKey()));
    if (!paths.getServerName().isEmpty()) tls.serverName(paths.getServerName());
    return tls.build();
  }

  private RequestOptions options() {
    RequestOptions.Builder options =
        RequestOptions.builder().onTrailers(trailers -> outcome.addAllTrailingMedia(Media.reports(trailers)));
    if (!call.getRequestId().isEmpty()) options.requestId(call.getRequestId());
    if (call.hasTimeoutS()) options.timeout(seconds(call.getTimeoutS()));
    return options.build();
  }

  private void make(TriptychClient client) {
    RequestOptions options = options();
    switch (call.getRequestCase()) {
      case CHAT_STREAM -> {
        try (ChatStream stream = client.chatStream(call.getChatStream(), options)) {
          read(stream, outcome::addChatStream, outcome::setChat);
        }
      }
      case COMPLETE_STREAM -> {
        try (CompleteStream stream = client.completeStream(call.getCompleteStream(), options)) {
          read(stream, outcome::addCompleteStream, outcome::setComplete);
        }
      }
      default -> {
        Thread reader = Thread.currentThread();
        cancelLater(reader::interrupt);
        unary(client, options);
      }
    }
  }

  private void unary(TriptychClient client, RequestOptions options) {
    switch (call.getRequestCase()) {
      case CHAT -> outcome.setChat(client.chat(call.getChat(), options));
      case COMPLETE -> outcome.setComplete(client.complete(call.getComplete(), options));
      case EMBED -> outcome.setEmbed(client.embed(call.getEmbed(), options));
      case SCORE -> outcome.setScore(client.score(call.getScore(), options));
      case CLASSIFY -> outcome.setClassify(client.classify(call.getClassify(), options));
      case TOKENIZE -> outcome.setTokenize(client.tokenize(call.getTokenize(), options));
      case DETOKENIZE -> outcome.setDetokenize(client.detokenize(call.getDetokenize(), options));
      case PREPROCESS -> outcome.setPreprocess(client.preprocess(call.getPreprocess(), options));
      case LIST_MODELS -> outcome.setListModels(client.listModels(options));
      default -> throw new IllegalArgumentException("the call " + call.getName() + " has no known request");
    }
  }

  /** Reads a stream. The answer is told after an error too. */
  private <T, A> void read(ResponseStream<T, A> stream, Consumer<T> response, Consumer<A> answer) {
    cancelLater(stream::cancel);
    int number = 0;
    try {
      for (T next : stream) {
        response.accept(next);
        number++;
        if (number == 1) pause(seconds(call.getPauseS()));
        if (call.hasCancelAfterResponses() && number == call.getCancelAfterResponses()) stream.cancel();
      }
    } finally {
      answer.accept(stream.response());
      outcome.addAllTrailingMedia(stream.trailingMedia());
    }
  }

  private void cancelLater(Runnable cancel) {
    if (!call.hasCancelAfterResponses() || call.getCancelAfterResponses() > 0) return;
    Runnable task =
        () -> {
          isCancelled = true;
          cancel.run();
        };
    timer.schedule(task, CANCEL_AFTER_MS, TimeUnit.MILLISECONDS);
  }

  private void tell(TriptychException error) {
    RequestError.Builder told =
        RequestError.newBuilder()
            .setCode(error.code().value())
            .setMessage(error.getMessage())
            .setReason(error.reason())
            .setField(error.field())
            .setLimit(error.limit())
            .setValue(error.value());
    error.retryAfter().ifPresent(delay -> told.setRetryAfterS(delay.toNanos() / 1e9));
    outcome.setError(told).setErrorClass(error.contractName()).setErrorRequestId(error.requestId());
  }

  private static void pause(Duration duration) {
    try {
      Thread.sleep(duration.toMillis());
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  private static Duration seconds(double seconds) {
    return Duration.ofNanos(Math.round(seconds * 1e9));
  }
}
