"""The gateway's side of the frontends."""
