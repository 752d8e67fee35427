"""Labels the files that containers get from the agent, on nodes with SELinux.

A container runs as container_t with two categories of its own, and may use files of the type container_file_t whose
level has no category that it lacks. The kubelet labels its plug-ins' folder in the same way.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

LABEL = "system_u:object_r:container_file_t:s0"
_ATTRIBUTE = "security.selinux"
_FILESYSTEMS = Path("/proc/filesystems")

log = structlog.get_logger("selinux")


def is_enabled() -> bool:
    """Whether the kernel runs with SELinux: only then it knows its file system."""
    return any(line.split()[-1:] == ["selinuxfs"] for line in _FILESYSTEMS.read_text().splitlines())


def label(*paths: Path) -> None:
    """Gives the files the label of containers' files. Does nothing without SELinux.

    A policy that does not know the type refuses the label. That is logged, because containers may not get the files.
    """
    if not is_enabled():
        return
    for path in paths:
        try:
            if _label_of(path) != LABEL:
                os.setxattr(path, _ATTRIBUTE, LABEL.encode() + b"\0", follow_symlinks=False)
        except OSError as error:
            log.warning(
                "not_labelled",
                path=str(path),
                label=LABEL,
                error=error.strerror,
                effect="SELinux may refuse containers the file: allow container_t to use it in the node's policy",
            )


def _label_of(path: Path) -> str:
    try:
        return os.getxattr(path, _ATTRIBUTE, follow_symlinks=False).rstrip(b"\0").decode()
    except OSError:
        return ""
