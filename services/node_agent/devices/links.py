"""The links between the GPUs of a node: NVLink, PCIe level and peer-to-peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml
import structlog

from services.node_agent.nvml_calls import NO_DRIVER, optional, text
from shared.model.gpu import Link, PcieLevel

T = TypeVar("T")
Ends = tuple[str, list[str]]
"""A GPU's PCI bus id, and what its NVLinks lead to."""

log = structlog.get_logger("nvml")

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
    """The links of the pairs of GPUs, by index, without those that cannot be read. Raises pynvml.NVMLError if no driver
    answers."""
    if len(handles) < 2:
        return ()
    asked = {index: _answer((index,), _ends, handle) for index, handle in handles.items()}
    ends = {index: answer for index, answer in asked.items() if answer is not None}
    pairs = [(a, b) for a in ends for b in ends if a < b]
    found = [_answer(pair, _link, *pair, handles, ends) for pair in pairs]
    return tuple(link for link in found if link is not None)


def _answer(gpus: tuple[int, ...], ask: Callable[..., T], *arguments: Any) -> T | None:
    """Returns None if a GPU does not answer, for it must not keep the others from being reported."""
    try:
        return ask(*arguments)
    except NO_DRIVER:
        raise
    except pynvml.NVMLError as error:
        log.warning("links_not_read", gpus=gpus, error=str(error))
        return None


def _link(a: int, b: int, handles: dict[int, Any], ends: dict[int, Ends]) -> Link:
    (_, from_a), (bus_id, from_b) = ends[a], ends[b]
    ancestor = optional(pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[a], handles[b])
    status = optional(pynvml.nvmlDeviceGetP2PStatus, handles[a], handles[b], _P2P_READ)
    return Link(
        a=a,
        b=b,
        nvlinks=from_a.count(bus_id) or min(from_a.count("switch"), from_b.count("switch")),
        pcie=_ANCESTORS.get(50 if ancestor is None else ancestor, "system"),
        p2p=status in (None, pynvml.NVML_P2P_STATUS_OK),
    )


def _ends(handle: Any) -> Ends:
    return text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower(), _active_links(handle)


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
