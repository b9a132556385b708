"""The clients: `triptych.Client` and `triptych.AsyncClient`."""
