"""Paths and driver facts of the host, as the agent sees them and as the container runtime does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_VERSION = re.compile(r"NVRM version:.*?\s([0-9]{3,}(?:\.[0-9]+)+)\s")
_CAPABILITY = re.compile(r"DeviceFileMinor:\s*([0-9]+)")


class Host(msgspec.Struct, frozen=True, kw_only=True):
    root: Path = Path("/")
    """Where the host's / is mounted for the agent."""
    driver_root: str = "/"
    """Where the driver's files are on the host: /run/nvidia/driver if a driver container installed them."""

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    def seen(self, path: str) -> Path:
        """The path under which the agent sees a path of the host."""
        return self.root / path.lstrip("/")

    def of_driver(self, path: str) -> str:
        """The path on the host of a path in the driver's root."""
        return path if self.driver_root == "/" else f"{self.driver_root.rstrip('/')}{path}"

    def driver_version(self) -> str:
        """The version of the loaded kernel module, or "" if none is loaded.

        Raises ValueError if it cannot be parsed.
        """
        path = self.proc / "driver/nvidia/version"
        try:
            text = path.read_text()
        except FileNotFoundError:
            return ""
        found = _VERSION.search(text)
        if found is None:
            raise ValueError(f"{path} contains no driver version: {text[:100]!r}")
        return found[1]

    def character_major(self, name: str) -> int | None:
        """The major number of a kind of character device, from /proc/devices; None if the kernel has none."""
        for line in (self.proc / "devices").read_text().partition("Block devices:")[0].splitlines():
            number, _, found = line.strip().partition(" ")
            if found == name:
                return int(number)
        return None

    def mig_capabilities(self, minor: int, gpu_instance: int, compute_instance: int) -> tuple[int, int] | None:
        """The numbers of the nvidia-cap nodes of a MIG instance, (GPU instance, compute instance); None if there are
        none."""
        folder = self.proc / f"driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}"
        found = []
        for path in (folder / "access", folder / f"ci{compute_instance}" / "access"):
            try:
                number = _CAPABILITY.search(path.read_text())
            except FileNotFoundError:
                return None
            if number is None:
                return None
            found.append(int(number[1]))
        return found[0], found[1]
