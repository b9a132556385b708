"""Requests and answers of the audio routes, which are forms."""
