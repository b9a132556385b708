"""`triptych batch`: the requests of a file in OpenAI's batch format, answered into a file that is also the journal."""
