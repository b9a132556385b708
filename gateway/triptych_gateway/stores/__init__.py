"""Stores of responses: in memory, in an SQLite file, or in Valkey or Redis for several gateways. Stores of files and batches."""
