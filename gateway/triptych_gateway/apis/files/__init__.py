"""/v1/files and /v1/uploads: files that later requests and batches name."""
