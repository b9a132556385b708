"""The engine without the services around it, and the services without an engine."""
