"""/v1/batches: files of requests, answered by the gateway's own routes behind other requests."""
