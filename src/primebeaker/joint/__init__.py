"""Service stack and RL run together: both are created or neither, and the services end with the training."""
