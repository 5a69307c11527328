"""The one process supervisor: start, watch, stream and end groups of child processes."""
