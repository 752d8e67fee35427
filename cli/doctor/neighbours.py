from __future__ import annotations

from typing import Any

from cli.doctor.base import CannotLook, Finding, Site, Status
from shared.kube.discovery import DiscoveryError, served
from shared.kube.resources import DEVICE_SLICE, NODE
from shared.kube.transport import TransportError
from shared.model import names, neighbours


class Neighbours:
    """Whether other systems offer GPUs of enrolled nodes, and which nodes with GPUs are not enrolled."""

    name = "neighbours"

    async def run(self, site: Site) -> list[Finding]:
        if site.simulated:
            return [Finding(self.name, "ok", "all nodes are simulated: no other system has GPUs there")]
        nodes = {one["metadata"]["name"]: _read(one) for one in await site.all(NODE.collection())}
        findings = self._told("fail", neighbours.other_plugins(nodes))
        try:
            findings += self._told("fail", neighbours.other_driver(nodes, await _offered_by_nvidia(site)))
        except CannotLook as error:
            text = f"NVIDIA's DRA driver was not looked for: {error}"
            findings.append(Finding(self.name, "warn", text, error.remedy))
        findings += self._told("warn", neighbours.without_gpu(nodes))
        if not findings:
            findings = [Finding(self.name, "ok", "no other system offers GPUs of enrolled nodes")]
        if others := neighbours.not_enrolled(nodes):
            text = f"nodes with GPUs that are not enrolled: {len(others)} ({neighbours.listed(others)})"
            do = f"where Kerf should manage them: kubectl label node NODE {names.LABEL_MANAGED}=true"
            findings.append(Finding(self.name, "ok", text, do))
        return findings

    def _told(self, status: Status, trouble: neighbours.Trouble | None) -> list[Finding]:
        return [] if trouble is None else [Finding(self.name, status, trouble.text, trouble.do)]


def _read(node: Any) -> neighbours.Neighbourhood:
    """With or without an operator that writes kerf.dev/enrolled: nodes that are to be Kerf's count already."""
    labels = node["metadata"].get("labels", {})
    own = (names.LABEL_ENROLLED, names.LABEL_MANAGED, names.LABEL_GPUSHARE)
    return neighbours.neighbourhood(
        labels, node.get("status", {}).get("allocatable", {}), enrolled=any(labels.get(one) == "true" for one in own)
    )


async def _offered_by_nvidia(site: Site) -> list[str]:
    """The nodes of ResourceSlices that offer devices; none where the API server has no such kind."""
    if site.kube is None:
        raise CannotLook(site.kube_error)
    try:
        found = await served(site.kube, DEVICE_SLICE)
    except (DiscoveryError, TransportError) as error:
        raise CannotLook(f"the API server does not say whether it has ResourceSlices: {error}") from error
    if found is None:
        return []
    slices = await site.all(found.collection(), fieldSelector=f"spec.driver={neighbours.DRA_DRIVER}")
    return [one["spec"].get("nodeName", "") for one in slices if one["spec"].get("devices")]
