"""Answers on their way to clients: whole or streamed, for as long as the client waits."""
