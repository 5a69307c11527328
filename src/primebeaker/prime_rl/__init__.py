"""Everything this package knows about Prime-RL, by version: names, programs, layouts, checkpoints."""
