"""The checkpoint's own media processors, run on sizes alone, without torch: how many tokens an item takes, and where."""
