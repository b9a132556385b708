"""`triptych keys`: makes, lists and revokes API keys of the gateway."""
