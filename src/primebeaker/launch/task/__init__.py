"""What runs inside a single-node task, as files: the script, and the preparation it calls."""
