"""`triptych top`: a live view of a running suite."""
