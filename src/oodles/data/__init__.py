"""Images from disk to batches: readers, preprocessing, loaders and downloads. Nothing here depends on a network."""
