"""Connections of clients: TLS, limits on what is kept of a request before anybody has looked at it."""
