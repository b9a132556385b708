"""Benchmarks of Triptych; benchmarks/README.md says what each program measures and how to run it."""
