"""The agent's record of its own MIG instances, on the host's disk: written before an instance is made, and again with
its id before its compute instance is.

So after a crash at any moment every instance that the agent has made, or half made, is known as its own, and no other
one is ever destroyed. MIG instances end with a reboot, and the record of an earlier boot counts no more.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from services.node_agent.checkpoint import write_durably
from services.node_agent.mig.layout import Own


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    boot_id: str = ""
    own: tuple[Own, ...] = ()
    proven: dict[str, str] = {}
    """By GPU UUID: the driver version with which an instance was made and destroyed there."""


def load(path: Path, boot_id: str) -> Record:
    """Returns what was saved last; an empty record if there is none. Raises OSError, and msgspec.DecodeError if the
    file is damaged."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return Record(boot_id=boot_id)
    return found if found.boot_id == boot_id else Record(boot_id=boot_id, proven=found.proven)


def save(path: Path, record: Record) -> None:
    """Raises OSError; then the old content still stands."""
    write_durably(path, msgspec.json.encode(record))
