"""Kerf's node agent in the sandbox, as a process of its own, over GPUs that are lines in a file."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.control_plane import free_ports
from tools.sandbox.inside import CAPABILITIES, DRIVER_ROOT, DRIVER_VERSION, GPUS, bus_id, minor
from tools.sandbox.node import NODE, ROOT, Sandbox

MEMORY_MIB = 81_920
MODEL = "NVIDIA H100 80GB HBM3"
_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$")


class Gpus:
    """The machine of the fake libnvidia-ml.so.1 (tests/fakes/nvml), which reads its file anew at every call."""

    def __init__(self, folder: Path) -> None:
        """Builds the library into `folder`. Raises subprocess.CalledProcessError where that fails."""
        self.folder, self.count = folder, GPUS
        subprocess.run(["make", "-s", "-C", str(ROOT / "tests/fakes/nvml"), f"BUILD={folder}"], check=True)
        self.set()

    def uuid(self, index: int) -> str:
        return f"GPU-{index:08d}-0000-4000-8000-000000000000"

    def set(
        self, *, errors: Mapping[int, int] | None = None, mig: Iterable[int] = (), more: Iterable[str] = ()
    ) -> None:
        """The machine from now on: `errors` are NVML's, by GPU; GPUs of `mig` are in MIG mode; `more` are further lines
        of the file."""
        wrong, in_mig_mode = errors or {}, set(mig)
        lines = [f"driver {DRIVER_VERSION}", "cuda 13000"] + [
            f"gpu {i} {self.uuid(i)} {MODEL.replace(' ', '_')} {MEMORY_MIB} 0000{bus_id(i)} "
            f"{i * 2 // self.count} 9 0 {int(i in in_mig_mode)} {wrong.get(i, 0)}"
            for i in range(self.count)
        ]
        lines += [f"minor {i} {minor(i)}" for i in range(self.count)]
        beside = self.folder / "machine.new"
        beside.write_text("\n".join([*lines, *more]) + "\n")
        beside.replace(self.folder / "machine")

    def environment(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(self.folder),
            "KERF_FAKE_NVML_STATE": str(self.folder / "machine"),
            "KERF_FAKE_NVML_CAPABILITIES": CAPABILITIES,
        }


class Agent:
    def __init__(
        self,
        sandbox: Sandbox,
        gpus: Gpus,
        nats_url: str,
        *,
        checkpoint: str = "agent",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` by the names of their environment variables."""
        self._sandbox = sandbox
        self.port = free_ports(1)[0]
        self.pid = 0
        """Inside."""
        self.checkpoint_file = f"/var/lib/kerf/{checkpoint}.json"
        """Inside."""
        self._environment = {
            "KERF_NODE": NODE,
            "KERF_NATS_URL": nats_url,
            "KERF_HTTP_PORT": str(self.port),
            "KERF_CHECKPOINT_FILE": self.checkpoint_file,
            "KERF_DRIVER_ROOT": DRIVER_ROOT,
            "KERF_DRA": "true",
            "KERF_MOUNT_SLICES": "true",
            "HOME": os.environ.get("HOME", "/root"),
            **gpus.environment(),
            **(settings or {}),
        }

    def start(self) -> None:
        self.pid = self._sandbox.spawn("agent", [sys.executable, "-m", "services.node_agent"], self._environment)

    def kill(self) -> None:
        """kill -9, as a crash would."""
        self._sandbox.kill("agent")

    def end(self) -> None:
        """In order, as an upgrade does."""
        self._sandbox.kill("agent", signal.SIGTERM)

    @property
    def ready(self) -> bool:
        try:
            return self._get("/readyz")[0] == 200
        except OSError:
            return False

    def samples(self, name: str) -> dict[str, float]:
        """A metric's samples, by their labels as Prometheus' text has them."""
        found = (_SAMPLE.match(line) for line in self._get("/metrics")[1].splitlines())
        return {m["labels"] or "": float(m["value"]) for m in found if m is not None and m["name"] == name}

    def _get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()
