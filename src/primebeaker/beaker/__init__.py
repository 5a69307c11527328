"""Beaker: experiment models, the engine seam, and the adapter for the ``beaker`` executable."""
