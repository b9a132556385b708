"""Pydantic models of requests and answers. They are the source of validation and of the OpenAPI document."""
