"""The REST APIs, a slice each: schema, request (to the contract), events (the answer), routes."""
