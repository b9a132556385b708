"""Linear layers on CPUs: their weights are packed once, in the layout that is fastest."""
