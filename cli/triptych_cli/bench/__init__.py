"""`triptych bench`: how fast an OpenAI-compatible server answers, by load."""
