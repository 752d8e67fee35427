"""The checkpoint on the host's disk: whole or not at all, whenever the power goes."""

from __future__ import annotations

import os
from pathlib import Path

from services.node_agent import state
from services.node_agent.state import Checkpoint, CheckpointError


class CheckpointFile:
    """Written beside its final name, synced, renamed over it, and the directory synced."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, node: str) -> Checkpoint | None:
        """What was saved last, or None on a host that never had an agent.

        Raises CheckpointError where there is a file that cannot be trusted: without it the agent does not know what it
        gave back for good, so it must not start as if nothing had been.
        """
        try:
            payload = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror}") from error
        try:
            return state.read(payload, node)
        except CheckpointError as error:
            raise CheckpointError(
                f"{self.path}: {error}. Drain this node's GPU pods, then move the file away; the agent begins anew without it"
            ) from error

    def save(self, checkpoint: Checkpoint) -> None:
        """Durable when it returns. Raises OSError; then the old content still stands, and nothing may be promised."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{self.path.name}.new")
        with beside.open("wb") as file:
            file.write(state.write(checkpoint))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
