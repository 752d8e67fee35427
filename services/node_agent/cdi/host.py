"""Where things are on the host, as the agent sees them and as the container runtime does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_VERSION = re.compile(r"(?:NVRM version:.*?\s)([0-9]{3,}(?:\.[0-9]+)+)\s")
_MINOR = re.compile(r"Device Minor:\s*([0-9]+)")
_CAPABILITY = re.compile(r"DeviceFileMinor:\s*([0-9]+)")


class Host(msgspec.Struct, frozen=True, kw_only=True):
    root: Path = Path("/")
    """Where the agent sees the host's /."""
    driver_root: str = "/"
    """Where on the host the driver's files are: /run/nvidia/driver where a driver container brought them."""

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    def seen(self, path: str) -> Path:
        """A path on the host, as the agent sees it."""
        return self.root / path.lstrip("/")

    def of_driver(self, path: str) -> str:
        """A path in the driver's root, as the host sees it."""
        return path if self.driver_root == "/" else f"{self.driver_root.rstrip('/')}{path}"

    def driver_version(self) -> str:
        """Of the kernel module that is loaded now; empty where none is."""
        try:
            text = (self.proc / "driver/nvidia/version").read_text()
        except FileNotFoundError:
            return ""
        found = _VERSION.search(text)
        return "" if found is None else found[1]

    def minors(self) -> dict[str, int]:
        """The number of each GPU's device node, by the kernel's PCI bus id. It need not be NVML's index."""
        found: dict[str, int] = {}
        for path in (self.proc / "driver/nvidia/gpus").glob("*/information"):
            minor = _MINOR.search(path.read_text())
            if minor is not None:
                found[path.parent.name.lower()] = int(minor[1])
        return found

    def mig_capabilities(self, minor: int, gpu_instance: int, compute_instance: int) -> tuple[int, int] | None:
        """The numbers of the nvidia-cap nodes that open a MIG instance: GPU instance, compute instance."""
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
