"""The error of all benchmarks."""


class BenchmarkError(Exception):
    """What was to be measured does not do what it was started for; the message says what went wrong."""
