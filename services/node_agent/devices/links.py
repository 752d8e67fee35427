"""The links between the GPUs of a node: NVLink, PCIe level and peer-to-peer."""

from __future__ import annotations

from typing import Any

import pynvml

from services.node_agent.nvml_calls import optional, text
from shared.model.gpu import Link, PcieLevel

_ANCESTORS: dict[int, PcieLevel] = {
    0: "internal",
    10: "single",
    20: "multiple",
    30: "hostbridge",
    40: "node",
    50: "system",
}
_P2P_READ = 0  # pynvml 13 defines NVML_P2P_CAPS_INDEX_READ as a tuple, by a stray comma
_SWITCH = 2
_MAX_NVLINKS = 36


def links(handles: dict[int, Any]) -> tuple[Link, ...]:
    """The links of every pair of GPUs, by index. Raises pynvml.NVMLError if a GPU does not answer."""
    if len(handles) < 2:
        return ()
    bus_ids = {index: text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower() for index, handle in handles.items()}
    peers = {index: _active_links(handle) for index, handle in handles.items()}
    found = []
    for a, first in handles.items():
        for b, second in handles.items():
            if a >= b:
                continue
            direct = sum(bus == bus_ids[b] for bus in peers[a])
            through_switch = min(peers[a].count("switch"), peers[b].count("switch"))
            ancestor = optional(pynvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
            status = optional(pynvml.nvmlDeviceGetP2PStatus, first, second, _P2P_READ)
            pcie = _ANCESTORS.get(50 if ancestor is None else ancestor, "system")
            found.append(
                Link(
                    a=a,
                    b=b,
                    nvlinks=direct or through_switch,
                    pcie=pcie,
                    p2p=status in (None, pynvml.NVML_P2P_STATUS_OK),
                )
            )
    return tuple(found)


def _active_links(handle: Any) -> list[str]:
    """What is at the other end of each active NVLink: a PCI bus id, or "switch"."""
    ends: list[str] = []
    for link in range(_MAX_NVLINKS):
        if not optional(pynvml.nvmlDeviceGetNvLinkState, handle, link):
            continue
        if optional(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) == _SWITCH:
            ends.append("switch")
            continue
        remote = optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        ends.append("" if remote is None else text(remote.busId).lower())
    return ends
