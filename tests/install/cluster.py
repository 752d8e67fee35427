"""A cluster of one real node with a network of its own, into which Kerf is installed as its users do it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.native import built
from tools.binaries import NODE, find_binaries, program
from tools.control_plane import ControlPlane
from tools.sandbox import Sandbox, network
from tools.sandbox.inside import DRIVER_ROOT, DRIVER_VERSION, GPUS, bus_id, minor
from tools.sandbox.node import WORKLOAD

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "build/kerf-image.tar"
NODE_NAME = "localhost"
GPUSHARE_IMAGE = "docker.io/cheyang/gpu-player:v2"
EXAMPLE_IMAGE = "nvcr.io/nvidia/cuda:13.0.1-base-ubuntu24.04"
"""That of k8s/examples/pod.yaml. Here it is the workload of the node's tests."""
MODEL = "NVIDIA H100 80GB HBM3"
MEMORY_MIB = 81_920
NEXT_TAG = "0.2.1"
"""The same image by another tag, as an upgrade has it."""


class CommandError(AssertionError):
    """A command of the user failed; the text is what it printed."""


class InstallCluster:
    """What a user has: kubectl, helm, and a node with GPUs that no other software offers."""

    def __init__(self, plane: ControlPlane, sandbox: Sandbox) -> None:
        self.plane, self.sandbox = plane, sandbox
        self._kubeconfig = str(plane.kubeconfig())

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """Its standard output. Raises CommandError."""
        return self._run([str(self.sandbox.binaries / "kubectl"), *arguments], given)

    def shell(self, line: str) -> str:
        """A command line of a document, from the root of the repository; its standard output. Raises CommandError."""
        return self._run(["sh", "-c", line])

    def get(self, kind: str, name: str = "", namespace: str = "kerf-system", *options: str) -> Any:
        """The object, or the items of the list."""
        words = ["get", kind, *([name] if name else []), "--namespace", namespace, "--output=json", *options]
        found = json.loads(self.kubectl(*words))
        return found if name else found["items"]

    def exists(self, kind: str, name: str, namespace: str = "kerf-system") -> bool:
        return bool(self.kubectl("get", kind, name, "--namespace", namespace, "--ignore-not-found", "--output=name"))

    def eventually(self, condition: Callable[[], Any], *, within_s: float, what: str) -> Any:
        """The first truthy value; fails with the state of Kerf's pods."""
        deadline = time.monotonic() + within_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s:.0f} s: {what}\n{self.report()}")
            time.sleep(0.2)
        return value

    def report(self) -> str:
        """The state of Kerf's pods and the last lines of those that are not ready, for a failed test."""
        lines = [self.kubectl("get", "pods", "--all-namespaces", "--output=wide")]
        for pod in self.get("pods"):
            if not ready(pod):
                name = pod["metadata"]["name"]
                lines.append(f"--- {name}: {json.dumps(pod['status'].get('containerStatuses', pod['status']))[:1500]}")
                with contextlib.suppress(CommandError):
                    lines.append(self.kubectl("logs", "--namespace=kerf-system", name, "--tail=25"))
        lines.append(self.kubectl("get", "events", "--namespace=kerf-system", "--sort-by=.lastTimestamp")[-3000:])
        return "\n".join(lines)

    def kerf_pods(self) -> list[dict[str, Any]]:
        return list(self.get("pods", "", "kerf-system", "--selector=app.kubernetes.io/part-of=kerf"))

    def restarts(self) -> dict[str, int]:
        """Of each container of Kerf's pods that was restarted."""
        return {
            pod["metadata"]["name"]: status["restartCount"]
            for pod in self.kerf_pods()
            for status in pod["status"].get("containerStatuses", ())
            if status["restartCount"]
        }

    def wait_ready(self, within_s: float) -> float:
        """Seconds until every pod of Kerf's is ready, none of them on its way out."""
        begun = time.monotonic()

        def all_ready() -> bool:
            pods = self.kerf_pods()
            return bool(pods) and all(ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)

        self.eventually(all_ready, within_s=within_s, what="every pod of Kerf's is ready")
        return time.monotonic() - begun

    def _run(self, command: Sequence[str], given: str | None = None) -> str:
        path = f"{program('helm').parent}:{self.sandbox.binaries}:{os.environ['PATH']}"
        environ = os.environ | {"KUBECONFIG": self._kubeconfig, "PATH": path}
        done = subprocess.run(
            command, env=environ, cwd=ROOT, input=given, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise CommandError(f"{' '.join(command[:6])} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout


def ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


@contextlib.contextmanager
def install_cluster() -> Iterator[InstallCluster]:
    """The cluster with Kerf's image on its node, before the first command. Only in a network namespace of its own."""
    network.prepare()
    binaries = find_binaries([*NODE, "kube-scheduler", "kubectl"])
    with tempfile.TemporaryDirectory(prefix="kerf-install-") as state:
        plane = ControlPlane(Path(state), binaries=binaries, controllers=True, scheduler=True).start()
        sandbox = Sandbox(plane, binaries, images={GPUSHARE_IMAGE: [], EXAMPLE_IMAGE: []}, networked=True)
        try:
            sandbox.start()
            ctr = ("ctr", "--address=/run/containerd/containerd.sock", "--namespace=k8s.io", "image")
            sandbox.run(*ctr, "import", str(ARCHIVE))
            sandbox.run(*ctr, "tag", "docker.io/library/kerf:0.2.0", f"docker.io/library/kerf:{NEXT_TAG}")
            _put_driver(sandbox)
            _put_volumes(plane, sandbox)
            yield InstallCluster(plane, sandbox)
        finally:
            sandbox.stop()
            plane.stop()


def _put_driver(sandbox: Sandbox) -> None:
    """The fake NVML and the fake CUDA driver, in the files where the node's driver would be."""
    libraries = sandbox.root / DRIVER_ROOT.lstrip("/") / "usr/lib64"
    subprocess.run(["make", "-s", "-C", str(ROOT / "tests/fakes/nvml"), f"BUILD={sandbox.state}/nvml"], check=True)
    shutil.copy(sandbox.state / "nvml/libnvidia-ml.so.1", libraries / f"libnvidia-ml.so.{DRIVER_VERSION}")
    shutil.copy(built("enforcement") / "libcuda.so.1", libraries / f"libcuda.so.{DRIVER_VERSION}")
    lines = [f"driver {DRIVER_VERSION}", "cuda 13000"]
    for i in range(GPUS):
        # As the fake driver names them.
        uuid = f"GPU-00000000-0000-0000-0000-{i + 1:012x}"
        lines += [
            f"gpu {i} {uuid} {MODEL.replace(' ', '_')} {MEMORY_MIB} 0000{bus_id(i)} {i * 2 // GPUS} 9 0 0 0",
            f"minor {i} {minor(i)}",
        ]
    (sandbox.root / "run/nvidia/machine").write_text("\n".join(lines) + "\n")


def _put_volumes(plane: ControlPlane, sandbox: Sandbox) -> None:
    """What a storage class would make."""
    for number in range(4):
        path = f"/var/lib/volumes/{number}"
        folder = sandbox.root / path.lstrip("/")
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        volume = {
            "metadata": {"name": f"volume-{number}"},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": path},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        }
        status, answer = plane.request("POST", "/api/v1/persistentvolumes", volume)
        assert status == 201, answer


def container(**limits: str) -> dict[str, Any]:
    """`limits` by the last part of Kerf's resource names."""
    return {
        "name": "main",
        "image": WORKLOAD,
        "resources": {"limits": {f"kerf.dev/{key.replace('_', '-')}": value for key, value in limits.items()}},
    }
