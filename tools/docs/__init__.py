"""Tools for the documentation: the generated configuration reference and the link checker."""
