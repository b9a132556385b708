"""What operators and browsers use: health, metrics, load, documentation, playground."""
