"""What the Helm chart takes from the code: its schema of values. And its golden renderings."""
