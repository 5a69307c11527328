"""What runs inside a task: rendezvous, readiness, the RL and SFT roles, the gateway."""
