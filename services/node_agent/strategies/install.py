"""Installs the interposer on the host, from where it is mounted into containers.

Each build has its own folder, so that an upgrade of the agent does not change the library of running containers.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from services.node_agent.strategies import selinux
from services.node_agent.strategies.interposer import CONTAINER_LIBRARY, PRELOAD

LIBRARY = "libkerf.so"


def install(build: Path, folder: Path, digest: str) -> Path:
    """Copies the library and writes its `ld.so.preload` beside it. Returns the library's path on the host. Raises
    OSError."""
    at = folder / digest
    at.mkdir(parents=True, exist_ok=True)
    if not (at / LIBRARY).exists():
        beside = at / f"{LIBRARY}.new"
        shutil.copyfile(build / LIBRARY, beside)
        beside.chmod(0o755)
        beside.replace(at / LIBRARY)
    (at / PRELOAD).write_text(f"{CONTAINER_LIBRARY}\n")
    selinux.label(at / LIBRARY, at / PRELOAD)
    return at / LIBRARY
