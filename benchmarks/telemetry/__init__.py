"""What it costs to be observed."""
