"""What clients may send and what they get, as pydantic models: the source of validation and of the OpenAPI document."""
