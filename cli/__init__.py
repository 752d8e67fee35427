"""The command `kerf`. It uses the bus only and imports no service."""
