"""/v1/responses: requests and answers."""
