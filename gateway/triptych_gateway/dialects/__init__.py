"""REST dialects: convert requests to the contract's messages, and answers to JSON."""
