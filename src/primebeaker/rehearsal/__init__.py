"""A launch on this machine with CPU stand-ins for the GPU programs, and its report."""
