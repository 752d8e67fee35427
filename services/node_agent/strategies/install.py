"""The interposer on the host, where containers get it from: under a name of its own for each build, so that an upgrade of the
agent changes nothing under the feet of what runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from services.node_agent.strategies.interposer import CONTAINER_LIBRARY, PRELOAD

LIBRARY = "libkerf.so"


def install(build: Path, folder: Path, digest: str) -> Path:
    """The library's path on the host, beside its `ld.so.preload`. Raises OSError."""
    at = folder / digest
    at.mkdir(parents=True, exist_ok=True)
    if not (at / LIBRARY).exists():
        beside = at / f"{LIBRARY}.new"
        shutil.copyfile(build / LIBRARY, beside)
        beside.chmod(0o755)
        beside.replace(at / LIBRARY)
    (at / PRELOAD).write_text(f"{CONTAINER_LIBRARY}\n")
    return at / LIBRARY
