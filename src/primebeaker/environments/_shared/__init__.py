"""What the bundled environments have in common."""
