"""Media items: fetched, checked, measured, and turned into placeholders. Decoded data is never kept."""
