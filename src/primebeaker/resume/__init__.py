"""Resume of a whole topology from its last complete checkpoint."""
