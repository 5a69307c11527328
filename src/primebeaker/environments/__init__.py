"""The bundled Verifiers environments under their public module names."""
