"""Hosts as directories: the files of a driver, a toolkit and a kernel.

Device nodes are plain files; only their names matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.node_agent import messages as m
from services.node_agent.cdi.host import Host
from shared.model.gpu import Gpu
from shared.model.grant import ContainerGrant, GpuShare
from shared.model.mig import MigInstance

VERSION = "580.82.07"
NVRM = (
    f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build  "
    "(dvs-builder@U22)  Thu Aug 28\nGCC version:  gcc 12\n"
)
DEBIAN = "usr/lib/x86_64-linux-gnu"
# Minor numbers are not the indices.
GPUS = {
    "GPU-a": Gpu(uuid="GPU-a", index=0, model="NVIDIA-H200", memory_mib=143_771, minor=3),
    "GPU-b": Gpu(uuid="GPU-b", index=1, model="NVIDIA-H200", memory_mib=143_771, minor=0),
}


class FakeHost:
    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, text: str = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, path: str, target: str) -> None:
        (self.root / path).symlink_to(target)

    def module(self, version_text: str = NVRM) -> FakeHost:
        """The kernel module is loaded."""
        self.put("proc/driver/nvidia/version", version_text)
        return self

    def nodes(self, *more: str) -> FakeHost:
        for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia3", *more):
            self.put(f"dev/{name}")
        return self

    def libraries(self, folder: str = DEBIAN, version: str = VERSION) -> FakeHost:
        for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
            self.put(f"{folder}/{name}.so.{version}")
            self.link(f"{folder}/{name}.so.1", f"{name}.so.{version}")
        self.link(f"{folder}/libcuda.so", "libcuda.so.1")
        self.put(f"{folder}/libc.so.6")
        self.put("usr/bin/nvidia-smi")
        return self

    def toolkit(self, **changes: Any) -> FakeHost:
        edits = {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": "/usr/bin/nvidia-cdi-hook",
                    "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", f"/{DEBIAN}"],
                    "env": ["NVIDIA_CTK_DEBUG=false"],
                }
            ],
            "mounts": [
                {
                    "hostPath": f"/{DEBIAN}/libcuda.so.{VERSION}",
                    "containerPath": f"/{DEBIAN}/libcuda.so.{VERSION}",
                    "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                }
            ],
        } | changes
        self.put("usr/bin/nvidia-cdi-hook")
        self.put(
            "etc/cdi/nvidia.json",
            json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [], "containerEdits": edits}),
        )
        return self

    def seen(self, driver_root: str = "/") -> Host:
        return Host(root=self.root, driver_root=driver_root)


def share(uuid: str = "GPU-a", memory: int = 16384, compute: int = 300, mig: MigInstance | None = None) -> GpuShare:
    return GpuShare(node="n1", uuid=uuid, memory_mib=memory, compute_milli=compute, mig=mig)


def hand_over(*shares: GpuShare, container: str = "main") -> m.HandOver:
    return m.HandOver("u-1", container, "g-1", ContainerGrant(strategy="advisory", gpus=shares or (share(),)))
