"""Files in OpenAI's batch format, as `triptych batch` and the gateway's /v1/batches answer them: lines, journal, retries."""
