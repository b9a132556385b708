"""The gateway's gRPC port: the frontends' services with the keys, rates, audit log, models and traces of REST."""
