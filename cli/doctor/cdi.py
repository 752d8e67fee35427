from __future__ import annotations

import re
from typing import Any

from cli.doctor.base import Finding, Site
from shared.kube.resources import NODE
from shared.model import names

KUBELET_LEAST = (1, 26)
LEAST = {"containerd": (1, 7), "cri-o": (1, 23)}
ENABLED_FROM = {"containerd": (2, 0), "cri-o": (1, 23)}
"""Before, CDI has to be enabled in the runtime's configuration."""


class Cdi:
    """Whether the container runtime and the kubelet of each GPU node can hand over devices by CDI."""

    name = "cdi"

    async def run(self, site: Site) -> list[Finding]:
        if site.simulated:
            return [Finding(self.name, "ok", "all nodes are simulated: there is no container runtime")]
        nodes = await site.all(NODE.collection(), labelSelector=f"{names.LABEL_MANAGED}=true")
        findings = [finding for node in nodes if (finding := self._of(node)) is not None]
        return findings or [Finding(self.name, "ok", f"runtime and kubelet have CDI on every node ({len(nodes)})")]

    def _of(self, node: Any) -> Finding | None:
        name, info = node["metadata"]["name"], node.get("status", {}).get("nodeInfo", {})
        runtime, _, version = info.get("containerRuntimeVersion", "").partition("://")
        kubelet = info.get("kubeletVersion", "")
        if number(kubelet) < KUBELET_LEAST:
            return Finding(self.name, "fail", f"{name}: kubelet {kubelet or '(unknown)'}", "upgrade to 1.26 or later")
        if runtime not in LEAST or number(version) < LEAST[runtime]:
            text = f"{name}: container runtime {runtime or '(unknown)'} {version} has no CDI"
            return Finding(self.name, "fail", text, "use containerd 2 (or 1.7 with enable_cdi) or CRI-O 1.23")
        if number(version) < ENABLED_FROM[runtime]:
            text = f"{name}: {runtime} {version} has CDI only where it is enabled"
            return Finding(self.name, "warn", text, "set enable_cdi = true in containerd's CRI configuration")
        return None


def number(version: str) -> tuple[int, int]:
    """Major and minor: "v1.34.2-gke.1" is (1, 34); (0, 0) where it is none."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
