"""/v1/responses and all below it: OpenAI's Responses API, as the Open Responses specification publishes it."""
