"""The checkpoint on the host's disk. A power failure leaves either the old or the new content, never a part."""

from __future__ import annotations

import os
from pathlib import Path

from services.node_agent import state
from services.node_agent.state import Checkpoint, CheckpointError


class CheckpointFile:
    """The file is written under another name, synced and renamed over the old one; then the directory is synced."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, node: str) -> Checkpoint | None:
        """Returns what was saved last, or None where there is none (see `first_checkpoint`).

        Raises CheckpointError if the file cannot be trusted: without it the agent does not know which grants it
        released for good, so it must not start as if the node were new.
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
                f"{self.path}: {error}. Drain this node's GPU pods, then move the file away; the agent starts "
                "without it"
            ) from error

    def save(self, checkpoint: Checkpoint) -> None:
        """As `write_durably`."""
        write_durably(self.path, state.write(checkpoint))


def write_durably(path: Path, content: bytes, mode: int | None = None) -> None:
    """Replaces a file; the new content is durable when this returns. `mode`: its permissions; None: as the process
    makes files. Raises OSError; then the old content still stands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(content)
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
