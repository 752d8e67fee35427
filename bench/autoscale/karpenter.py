"""Runs Karpenter with its KWOK provider against an API server. The provider creates Node objects; nothing else is
simulated in it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tools import binaries
from tools.control_plane import ControlPlane, die_with_parent, free_ports

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definitions() -> list[dict[str, Any]]:
    """Karpenter's CustomResourceDefinitions, from the pinned module. Raises NoBinaries."""
    folder = binaries.source("karpenter")
    files = [*(folder / "pkg/apis/crds").glob("*.yaml"), *(folder / "kwok/apis/crds").glob("*.yaml")]
    return [document for file in sorted(files) for document in yaml.safe_load_all(file.read_text()) if document]


class Karpenter:
    """Its process, with its log in `state`."""

    def __init__(self, plane: ControlPlane, state: Path, instance_types: list[dict[str, Any]]) -> None:
        for document in definitions():
            status, answer = plane.request("POST", _CRDS, document)
            if status not in (201, 409):
                raise RuntimeError(f"{document['metadata']['name']}: {status} {answer[:300]!r}")
        types = state / "instance-types.json"
        types.write_text(json.dumps(instance_types))
        metrics_port, health_port = free_ports(2)
        self.log = state / "karpenter.log"
        command: list[str | Path] = [
            binaries.program("karpenter"),
            "--disable-leader-election",
            f"--instance-types-file-path={types}",
            f"--metrics-port={metrics_port}",
            f"--health-probe-port={health_port}",
            "--feature-gates=NodeOverlay=true",
        ]
        environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig()), "SYSTEM_NAMESPACE": "kube-system"}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509  (the child only calls prctl)
            )

    def check(self) -> None:
        """Raises RuntimeError with the end of its log if it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"Karpenter ended with {self._process.returncode}: {self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
