"""Reads /proc/PID/stat, of which a part is the process's own: any bytes may be in its name."""

from __future__ import annotations

from pathlib import Path


def fields(process: Path) -> list[bytes]:
    """The fields after the name, the state first, of a process's or a thread's folder in /proc. Raises OSError."""
    return (process / "stat").read_bytes().rpartition(b")")[2].split()
