"""Why a pod waits, and what would help."""
