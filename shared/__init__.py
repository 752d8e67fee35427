"""What the services have in common. Nothing here imports a service."""
