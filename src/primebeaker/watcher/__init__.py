"""The provenance watcher: which data and config produced which checkpoint and score."""
