"""The dialect of /v1/responses: OpenAI's Responses API, as the Open Responses specification publishes it."""
