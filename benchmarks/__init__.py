"""Speed and memory, ours beside the obvious way to do the same; every figure is a ratio within one run."""
