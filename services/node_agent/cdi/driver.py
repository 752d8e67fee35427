"""The driver part of a slice's CDI spec: what all slices need of the driver, and the nodes of single GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from services.node_agent.cdi import device_nodes, driver_files, toolkit
from services.node_agent.cdi.host import Host
from services.node_agent.cdi.spec import ContainerEdits, DeviceNode, merged
from services.node_agent.mig.layout import Place, place_of
from shared.model.gpu import Gpu
from shared.model.grant import GpuShare

log = structlog.get_logger("cdi")

MigIds = Mapping[Place, tuple[int, int]]
"""The ids of GPU instance and compute instance, by the place of the MIG instance."""


class _Key(msgspec.Struct, frozen=True):
    """The inputs of the common edits: if one changes, the edits are built again."""

    version: str
    control: tuple[DeviceNode, ...]
    toolkit: tuple[tuple[str, int], ...]
    extras: driver_files.Extras


class Driver:
    """Reads the driver's files from the host.

    Keeps the common edits until the driver, its nodes or the toolkit's spec change, or files come or go that they name.
    """

    def __init__(self, host: Host, machine: str) -> None:
        self._host, self._machine = host, machine
        self._key: _Key | None = None
        self._common = ContainerEdits()
        self._named: tuple[Path, ...] = ()
        """The files that the common edits name, without links to targets that only the host can resolve."""

    def edits(self, shares: Iterable[GpuShare], gpus: Mapping[str, Gpu], mig_ids: MigIds) -> ContainerEdits:
        """The edits for these shares. Raises ValueError if something is missing that a container needs."""
        version = self._host.driver_version()
        if not version:
            raise ValueError("no NVIDIA driver is loaded on this host")
        nodes = self._nodes(shares, gpus, mig_ids)
        return merged(self._common_edits(version), ContainerEdits(device_nodes=nodes))

    def _common_edits(self, version: str) -> ContainerEdits:
        control = device_nodes.control(self._host)
        stamps = tuple(
            (name, path.stat().st_mtime_ns) for name in toolkit.FILES if (path := self._host.seen(name)).exists()
        )
        key = _Key(version, control, stamps, driver_files.extras(self._host))
        if key != self._key or not all(path.exists() for path in self._named):
            found, why = toolkit.common_edits(self._host, version)
            if why:
                log.warning("toolkit_spec_not_used", why=why)
            own = found or driver_files.edits(self._host, version, self._machine)
            self._common = merged(ContainerEdits(device_nodes=control), own) if found is None else own
            self._named = tuple(path for path in map(self._host.seen, self._common.of_host()) if path.exists())
            self._key = key
        return self._common

    def _nodes(self, shares: Iterable[GpuShare], gpus: Mapping[str, Gpu], mig_ids: MigIds) -> tuple[DeviceNode, ...]:
        nodes: list[DeviceNode] = []
        for share in shares:
            gpu = gpus.get(share.uuid)
            if gpu is None or gpu.minor < 0:
                raise ValueError(f"NVML reports no device node for GPU {share.uuid}")
            nodes.append(device_nodes.gpu(self._host, gpu.minor))
            place = place_of(share)
            if place is not None:
                ids = mig_ids.get(place)
                if ids is None:
                    raise ValueError(f"NVML does not know MIG instance {place.profile} of GPU {share.uuid}")
                nodes += device_nodes.mig(self._host, gpu.minor, *ids)
        return tuple(nodes)
