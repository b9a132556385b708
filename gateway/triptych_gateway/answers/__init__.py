"""Sending answers to clients, whole or streamed, until the client disconnects."""
