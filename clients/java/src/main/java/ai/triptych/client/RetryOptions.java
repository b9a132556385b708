package ai.triptych.client;

import java.time.Duration;
import java.util.Objects;

/**
 * Retries of calls that end with UNAVAILABLE or RESOURCE_EXHAUSTED before anything of the answer has come. gRPC makes them,
 * within the deadline of the call.
 *
 * <p>A server can say how long to wait before the next attempt, or that there shall be none. That goes before these options.
 *
 * @param maxAttempts attempts, the first one included, from 1 (no retries) to 5
 * @param initialBackoff wait before the second attempt, which gRPC changes at random
 * @param maxBackoff longest wait before any attempt, before the random change
 * @param backoffMultiplier each wait is this many times the one before it
 */
public record RetryOptions(int maxAttempts, Duration initialBackoff, Duration maxBackoff, double backoffMultiplier) {
  private static final RetryOptions DEFAULTS = new RetryOptions(4, Duration.ofMillis(100), Duration.ofSeconds(2), 2);

  /** Checks the values. Throws IllegalArgumentException for one that is out of its range. */
  public RetryOptions {
    if (maxAttempts < 1 || maxAttempts > 5) {
      throw new IllegalArgumentException("maxAttempts is " + maxAttempts + ", not in [1, 5]");
    }
    checkPositive("initialBackoff", initialBackoff);
    checkPositive("maxBackoff", maxBackoff);
    if (!(backoffMultiplier > 0)) {
      throw new IllegalArgumentException("backoffMultiplier is " + backoffMultiplier + ", not positive");
    }
  }

  /**
   * At most 4 attempts, with waits of about 0.1 s, 0.2 s and 0.4 s at most.
   *
   * @return the options
   */
  public static RetryOptions defaults() {
    return DEFAULTS;
  }

  /**
   * One attempt.
   *
   * @return the options
   */
  public static RetryOptions none() {
    return DEFAULTS.withMaxAttempts(1);
  }

  /**
   * These options with another number of attempts.
   *
   * @param attempts the first one included, from 1 to 5
   * @return the new options
   */
  public RetryOptions withMaxAttempts(int attempts) {
    return new RetryOptions(attempts, initialBackoff, maxBackoff, backoffMultiplier);
  }

  private static void checkPositive(String name, Duration value) {
    Objects.requireNonNull(value, name);
    if (value.isNegative() || value.isZero()) {
      throw new IllegalArgumentException(name + " is " + value + ", not positive");
    }
  }
}
