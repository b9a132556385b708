"""From a request to what an engine needs."""
