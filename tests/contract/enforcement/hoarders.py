"""Processes in the cgroups of pods that take GPU memory without Kerf's library."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.enforcement import NVML
from tests.support.pod_cgroups import PodTree

HOARDER = Path(__file__).with_name("hoarder.py")


class Hoarder:
    """A process in a pod that takes GPU memory without the library."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid
        self.mib = 0
        self.take()

    def take(self, kind: str = "plain") -> int:
        """Asks for the next 8 MiB. Returns what it has then, in MiB."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.mib:
            self.process.stdin.write(f"{kind}\n")
            self.process.stdin.flush()
        self.mib = int(self.process.stdout.readline())
        return self.mib


@contextlib.contextmanager
def hoarder(tree: PodTree, name: str, library: str) -> Iterator[Hoarder]:
    with subprocess.Popen(
        [sys.executable, str(HOARDER), library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        tree.add(name, process.pid)
        try:
            yield Hoarder(process)
        finally:
            process.kill()
            tree.thaw(name)


def seen(*hoarders: Hoarder) -> str:
    return NVML + "".join(f"process 0 {one.pid} {one.mib}\n" for one in hoarders)
