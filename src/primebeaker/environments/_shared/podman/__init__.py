"""Tasks in live containers: sessions of the Podman service, what is run in them, and how they are graded."""
