package ai.triptych.client;

import ai.triptych.client.errors.TriptychException;
import ai.triptych.v1.ChoiceDelta;
import ai.triptych.v1.MediaReport;
import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Queue;

/**
 * The responses of one call as they come. They can be read once, by one thread:
 *
 * <pre>{@code
 * try (ChatStream stream = client.chatStream(request)) {
 *   for (String text : stream.textDeltas()) System.out.print(text);
 *   System.out.println(stream.response().getUsage());
 * }
 * }</pre>
 *
 * <p>A reader that pauses makes the server wait. {@link #close()} cancels the call, and the server stops its work. A stream that is
 * neither closed nor read to its end keeps its call alive.
 *
 * @param <T> a response
 * @param <A> the answer that all responses add up to
 */
public abstract class ResponseStream<T, A> implements Iterable<T>, Iterator<T>, AutoCloseable {
  private final ResponseReader<T> reader;
  private volatile boolean isCancelled;
  private T next;

  ResponseStream(ResponseReader<T> reader) {
    this.reader = reader;
  }

  /** Adds a response to the answer. */
  abstract void accumulate(T response);

  /** What is new in the choices. */
  abstract List<ChoiceDelta> choices(T response);

  /**
   * What was read so far, merged into the answer that the call without a stream gives. It stays valid after an error.
   *
   * @return the answer; a choice whose finish reason is unspecified has not ended
   */
  public abstract A response();

  /**
   * The {@code x-request-id} that was sent.
   *
   * @return the id
   */
  public final String requestId() {
    return reader.requestId();
  }

  /**
   * Waits for the next response.
   *
   * @return false at the end of a call that succeeded, and after {@link #cancel()}
   * @throws TriptychException if the call failed
   */
  @Override
  public final boolean hasNext() {
    if (isCancelled) return false;
    if (next != null) return true;
    try {
      next = reader.next();
    } catch (TriptychException e) {
      if (!isCancelled) throw e;
    }
    return next != null && !isCancelled;
  }

  /**
   * The next response.
   *
   * @return the response
   * @throws TriptychException if the call failed
   * @throws NoSuchElementException after the last response
   */
  @Override
  public final T next() {
    if (!hasNext()) throw new NoSuchElementException("the stream has ended");
    T response = next;
    next = null;
    accumulate(response);
    return response;
  }

  /**
   * This stream. There is no second one: responses that were read do not come again.
   *
   * @return this
   */
  @Override
  public final Iterator<T> iterator() {
    return this;
  }

  /**
   * The pieces of text of the first choice as they come. Reasoning, tool calls and empty pieces are left out.
   *
   * @return the pieces, which can be read once, in place of the responses
   */
  public final Iterable<String> textDeltas() {
    return textDeltas(0);
  }

  /**
   * The pieces of text of one choice as they come. Reasoning, tool calls and empty pieces are left out.
   *
   * @param index of the choice
   * @return the pieces, which can be read once, in place of the responses
   */
  public final Iterable<String> textDeltas(int index) {
    return () -> new TextDeltas(index);
  }

  /**
   * The reports on media in the trailing metadata. They are left out if they are too long for it; those of {@link #response()}
   * are complete.
   *
   * @return the reports; empty before the end of the stream
   */
  public final List<MediaReport> trailingMedia() {
    return Media.reports(reader.trailers());
  }

  /**
   * Cancels the call, unless it has ended. The stream then ends as if the server had ended it. May be called more than once, and by
   * any thread.
   */
  public final void cancel() {
    isCancelled = true;
    reader.cancel("the stream was cancelled", null);
  }

  /** The same as {@link #cancel()}. */
  @Override
  public final void close() {
    cancel();
  }

  private final class TextDeltas implements Iterator<String> {
    private final int index;
    private final Queue<String> pieces = new ArrayDeque<>();

    private TextDeltas(int index) {
      this.index = index;
    }

    @Override
    public boolean hasNext() {
      while (pieces.isEmpty() && ResponseStream.this.hasNext()) {
        for (ChoiceDelta delta : choices(ResponseStream.this.next())) {
          if (delta.getIndex() == index && !delta.getText().isEmpty()) pieces.add(delta.getText());
        }
      }
      return !pieces.isEmpty();
    }

    @Override
    public String next() {
      if (!hasNext()) throw new NoSuchElementException("the stream has ended");
      return pieces.remove();
    }
  }
}
