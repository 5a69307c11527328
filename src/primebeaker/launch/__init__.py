"""From a training TOML to a Beaker experiment: topology, checks, spec, preview, submission."""
