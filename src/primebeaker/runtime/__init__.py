"""Template loading and small JSON helpers under their public names."""
