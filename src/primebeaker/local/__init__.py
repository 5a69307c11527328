"""The embedded engine: experiment specs as supervised processes on this machine."""
