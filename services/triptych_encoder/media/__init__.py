"""From raw media files to pixels, samples and frames: limits first, then decoding."""
