"""The Grafana dashboard."""
