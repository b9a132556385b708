"""A discrete-event model of clients, frontends and engines around the real scheduler and the real routing policies."""
