#!/bin/sh
# What `make demo` runs once everything is installed: check, preview and rehearse the example RL run on this machine.
set -eu
cd "$(dirname "$0")/.."

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

toml=examples/rl/config.toml
run primebeaker toml check --toml "$toml" --format text
run primebeaker rl preview --toml "$toml" --mount-path "$PWD" --format text
run primebeaker rehearse --toml "$toml" --mount-path "$PWD" --format text
run primebeaker rehearse --toml examples/rl/multinode.toml --mount-path "$PWD" --format text

cat <<'TEXT'

Nothing was trained: CPU stand-ins took the place of trainer, inference and orchestrator.
The processes, the rendezvous, the rollouts, the rewards and the checkpoint layout were real.

Try next:
  primebeaker rehearse --toml examples/rl/config.toml --steps 8 --format text
  primebeaker local list
  primebeaker --help
TEXT
