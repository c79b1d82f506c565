"""Speed and memory compared with the obvious way to do the same; every number is a ratio within one run."""
