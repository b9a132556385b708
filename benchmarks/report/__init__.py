"""Tables and charts of docs/architecture/measurements.md, made of result files."""
