"""REST dialects: requests to the contract's messages, and answers back to JSON."""
