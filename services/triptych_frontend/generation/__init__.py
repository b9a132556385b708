"""Generation calls: admission control, sampling parameters, choices."""
