"""Columns of tensors on disk: shards, a manifest with checksums, exact resume, memory-mapped reads.

A store is a folder::

    manifest.json                what is here: rows, columns, a SHA-256 of every file, where it came from
    head-<sha>.safetensors       the last layer that the embeddings belong to, if there is one
    shard-00000.safetensors ...  the rows; the number is that of the first batch of the loader
    part-00001.json ...          while several processes write: the shards of the others, which the manifest takes over

A shard is listed in the manifest only after it is completely on disk, so another writer can continue what a killed
one left. Opening reads only the manifest, the head and file sizes; each shard is checked against its SHA-256 and
against the manifest when its rows are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
