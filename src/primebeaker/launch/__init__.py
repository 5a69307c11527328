"""From a training TOML and flags to an experiment spec, a preview, a submission and its receipt."""
