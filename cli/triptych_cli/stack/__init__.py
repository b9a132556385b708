"""The services of one machine, run as processes."""
