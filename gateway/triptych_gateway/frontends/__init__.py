"""Connections to the frontends, and the choice among them."""
