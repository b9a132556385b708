"""The checkpoint's own media processors, run on sizes only, without torch: how many tokens an item takes, and where."""
