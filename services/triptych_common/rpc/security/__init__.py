"""Mutual TLS between services: certificates, the roles that they name, and what each role may call."""
