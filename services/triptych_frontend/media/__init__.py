"""Media items: fetched, checked, measured, and turned into placeholders. Nothing is decoded here."""
