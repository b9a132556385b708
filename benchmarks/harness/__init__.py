"""What every benchmark needs: servers under measurement, processor time and memory, result files."""
