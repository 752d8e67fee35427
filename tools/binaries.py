"""Where the binaries of a control plane and of a node are."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
KUBERNETES_VERSION = "v1.36.4"
REQUIRED = ("etcd", "kube-apiserver")
NODE = (
    *REQUIRED,
    "kube-controller-manager",
    "kubelet",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "workload",
)
"""What a sandbox with a real kubelet runs: `tools/build.sh node`."""


class NoBinaries(RuntimeError):
    """There is no control plane to start; the text says how to get one."""


def find_binaries(names: Sequence[str] = REQUIRED, *, build: bool = False) -> Path:
    """The directory that holds all of `names`: KUBEBUILDER_ASSETS, or the cache of tools/build.sh (built now if
    `build`).

    Raises NoBinaries.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and all(os.access(Path(assets) / name, os.X_OK) for name in names):
        return Path(assets)
    if build:
        done = subprocess.run([HERE / "build.sh", *names], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise NoBinaries(f"tools/build.sh failed with status {done.returncode}")
        return Path(done.stdout.strip())
    pins = [*sorted(HERE.glob("*/go.mod")), *sorted(HERE.glob("*/go.sum")), *sorted(HERE.glob("*/*.go"))]
    key = hashlib.sha256(b"".join(pin.read_bytes() for pin in pins)).hexdigest()[:12]
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "kerf"
        / "kube"
        / f"{KUBERNETES_VERSION}-{key}"
    )
    missing = [name for name in names if not os.access(cache / name, os.X_OK)]
    if missing:
        raise NoBinaries(f"no {', '.join(missing)} in $KUBEBUILDER_ASSETS or {cache}; tools/build.sh builds them")
    return cache


def program(name: str, *, build: bool = True) -> Path:
    """The program `name` of tools/program.sh (helm, nats-server, lws), built now if it is not cached and `build`.

    Raises NoBinaries.
    """
    return _asked(*([] if build else ["--cached"]), name)


def source(name: str) -> Path:
    """The folder of the source of the program's pinned module, with its manifests. Raises NoBinaries."""
    return _asked("--source", name)


def _asked(*arguments: str) -> Path:
    done = subprocess.run([HERE / "program.sh", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise NoBinaries(f"tools/program.sh {' '.join(arguments)} failed with status {done.returncode}")
    return Path(done.stdout.strip())
