"""A node with a real kubelet, from outside: started, stopped, and its processes killed and started again one by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.control_plane import ControlPlane, free_ports
from tools.sandbox import image, network, settings

ROOT = Path(__file__).resolve().parents[2]
NODE = "localhost"
"""Its name: the API server resolves it when it asks the kubelet for logs."""
WORKLOAD = "localhost/workload:1"
READY_WITHIN_S = 60.0


class SandboxError(RuntimeError):
    """The node, or something in it, did not come up; the text ends with its log."""


class Sandbox:
    """One node of the cluster `plane`. Not for several threads at once, except for what is said otherwise."""

    def __init__(
        self,
        plane: ControlPlane,
        binaries: Path,
        *,
        images: Mapping[str, Sequence[str]] | None = None,
        networked: bool = False,
    ) -> None:
        """`images` are further names of the workload's image, with their arguments.

        `networked`: pods reach each other, Services and the API server (tools.sandbox.network), and the node is like
        any new one: without Kerf's label and taint.
        """
        self.plane, self.binaries, self.networked = plane, binaries, networked
        self._images = {settings.PAUSE: ["pause"], WORKLOAD: [], **(images or {})}
        self._guard: subprocess.Popen[str] | None = None
        self._speaking = threading.Lock()
        self.state = Path()
        self.init_pid = 0
        """Process 1 of the namespace, by the machine's count."""
        self.port = free_ports(1)[0]

    @property
    def root(self) -> Path:
        """The root directory as processes inside see it."""
        return Path(f"/proc/{self.init_pid}/root")

    def start(self) -> float:
        """Seconds until the node was Ready. Raises SandboxError."""
        begun = time.monotonic()
        self.state = Path(tempfile.mkdtemp(prefix="kerf-node-"))
        if self.networked:
            settings.write(
                self.state, self.plane.pki, self.port, cni=network.CNI, enrolled=False, domain=network.DOMAIN
            )
        else:
            settings.write(self.state, self.plane.pki, self.port)
        image.archive(self.binaries / "workload", self._images, self.state / "images.tar")
        try:
            self._start_guard()
            self.start_containerd()
            self.run(
                "ctr",
                "--address=/run/containerd/containerd.sock",
                "--namespace=k8s.io",
                "image",
                "import",
                str(self.state / "images.tar"),
            )
            if self.networked:
                self.run("mount", "--make-rshared", "/")  # for volumes with mount propagation
                self.spawn("network", [sys.executable, "-m", "tools.sandbox.network", str(self.plane.kubeconfig())])
            self.start_kubelet()
            self._wait("the node is Ready", self._ready, "kubelet")
            # The controller that would take its first taint away once the node is ready does not run here.
            self.plane.request(
                "PATCH",
                f"/api/v1/nodes/{NODE}",
                {"spec": {"taints": [] if self.networked else [{"key": "kerf.dev/managed", "effect": "NoSchedule"}]}},
                content_type="application/merge-patch+json",
            )
        except BaseException:
            self.stop()
            raise
        return time.monotonic() - begun

    def stop(self) -> None:
        """Ends everything inside and leaves nothing. Also after a start that failed."""
        guard, self._guard = self._guard, None
        if guard is not None:
            assert guard.stdin is not None  # noqa: S101 - it is a pipe
            guard.stdin.close()
            guard.wait()

    def start_containerd(self) -> None:
        self.spawn("containerd", [str(self.binaries / "containerd"), "--config", str(self.state / "containerd.toml")])
        self._wait("containerd's socket", (self.root / "run/containerd/containerd.sock").exists, "containerd")

    def start_kubelet(self) -> None:
        """Returns at once; pods that run already are not touched by it."""
        config = self.plane.kubeconfig(f"system:node:{NODE}", groups=("system:nodes",))
        self.spawn(
            "kubelet",
            [
                str(self.binaries / "kubelet"),
                f"--config={self.state}/kubelet.json",
                f"--kubeconfig={config}",
                f"--hostname-override={NODE}",
                *([] if self.networked else ["--node-labels=kerf.dev/managed=true"]),
                "--runtime-cgroups=/",
                "--v=2",
            ],
        )

    def spawn(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
        """Starts a process inside, from the root of the repository; its id there. Its output goes to `log(name)`."""
        path = f"{self.binaries}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        return int(
            self._order(
                do="start", name=name, argv=list(argv), env={"PATH": path, **(env or {})}, log=str(self._log(name))
            )["pid"]
        )

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Its exit status, when it has ended; at once if it had ended before."""
        return int(self._order(do="kill", name=name, signal=int(number))["status"])

    def freeze(self, name: str) -> None:
        """Freezes it without notice."""
        self._order(do="signal", name=name, signal=int(signal.SIGSTOP))

    def thaw(self, name: str) -> None:
        self._order(do="signal", name=name, signal=int(signal.SIGCONT))

    def status(self, name: str) -> int | None:
        """None while it runs."""
        status: int | None = self._order(do="status", name=name)["status"]
        return status

    def run(self, *argv: str) -> None:
        """A short command inside. Raises SandboxError where it fails."""
        self.spawn("command", argv)
        self._wait(" ".join(argv), lambda: self.status("command") is not None, "command", alive=False)
        if self.status("command"):
            raise SandboxError(f"{' '.join(argv)} ended with {self.status('command')}: {self.log('command')}")

    def log(self, name: str, last: int = 3000) -> str:
        file = self._log(name)
        return file.read_text(errors="replace")[-last:] if file.exists() else ""

    def outside(self, pid: int) -> int:
        """The machine's id of a process inside. Raises SandboxError where there is none."""
        namespace = os.readlink(f"/proc/{self.init_pid}/ns/pid")
        for folder in Path("/proc").iterdir():
            try:
                here = folder.name.isdigit() and os.readlink(folder / "ns/pid") == namespace
                ids = (
                    [
                        line.split()[1:]
                        for line in (folder / "status").read_text().splitlines()
                        if line.startswith("NSpid:")
                    ]
                    if here
                    else []
                )
            except OSError:
                continue  # it has just ended
            if ids and ids[0][-1] == str(pid):
                return int(folder.name)
        raise SandboxError(f"there is no process {pid} in the sandbox")

    def pids_of(self, container_id: str) -> list[int]:
        """The machine's ids of the processes that run in a container, as the runtime names it (64 hexadecimal
        digits)."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                inside = folder.name.isdigit() and container_id in (folder / "cgroup").read_text()
            except OSError:
                continue  # it has just ended
            if inside:
                found.append(int(folder.name))
        return found

    def _start_guard(self) -> None:
        pipe = subprocess.PIPE
        with self._log("guard").open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "tools.sandbox", str(self.state)],
                cwd=ROOT,
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._answer()
        (unshare,) = _children(self._guard.pid)
        (self.init_pid,) = _children(unshare)

    def _order(self, **order: Any) -> dict[str, Any]:
        """May be called from several threads."""
        with self._speaking:
            assert self._guard is not None, "the sandbox is not started"  # noqa: S101 - a mistake of the caller
            assert self._guard.stdin is not None  # noqa: S101 - it is a pipe
            try:
                self._guard.stdin.write(json.dumps(order) + "\n")
                self._guard.stdin.flush()
            except BrokenPipeError as error:
                raise SandboxError(f"the sandbox has ended: {self.log('guard')}") from error
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._guard is not None  # noqa: S101 - the callers have looked
        assert self._guard.stdout is not None  # noqa: S101 - it is a pipe
        line = self._guard.stdout.readline()
        if not line:
            raise SandboxError(f"the sandbox has ended: {self.log('guard')}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _log(self, name: str) -> Path:
        return self.state / f"{name}.log"

    def _ready(self) -> bool:
        status, answer = self.plane.request("GET", f"/api/v1/nodes/{NODE}")
        conditions = json.loads(answer).get("status", {}).get("conditions", []) if status == 200 else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _wait(self, what: str, condition: Callable[[], bool], name: str, *, alive: bool = True) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while not condition():
            if alive and self.status(name) is not None:
                raise SandboxError(f"{name} ended with {self.status(name)}: {self.log(name)}")
            if time.monotonic() > deadline:
                raise SandboxError(f"not within {READY_WITHIN_S:.0f} s: {what}; {name} says: {self.log(name)}")
            time.sleep(0.02)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
