"""Tables and charts of docs/performance.md, made of result files."""
