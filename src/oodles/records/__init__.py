"""Read and write files: atomic writes, JSON records with checksums, tensors, and the text that goes into messages.

Code that knows what a file means (a guard, a store, a report) does not belong here.
"""
