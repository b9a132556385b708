"""Runs the golden cases of clients/conformance/cases with the client of each language."""
