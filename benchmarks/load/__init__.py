"""The REST load: requests, the client, and the figures of what it saw."""
