"""Composes and writes the CDI spec of a container's share."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping

from services.node_agent import messages as m
from services.node_agent.cdi import environment, rdma
from services.node_agent.cdi.driver import Driver, MigIds
from services.node_agent.cdi.host import Host
from services.node_agent.cdi.openable import openable
from services.node_agent.cdi.spec import ContainerEdits, merged
from services.node_agent.cdi.writer import SpecDir
from shared.model.gpu import Gpu, Nic
from shared.model.grant import GpuShare, Grant


class SliceWriter:
    def __init__(
        self,
        specs: SpecDir,
        host: Host,
        *,
        grant_of: Callable[[str], Grant | None],
        gpus: Callable[[], Mapping[str, Gpu]],
        nics: Callable[[], Mapping[str, Nic]],
        enforced: Callable[[m.HandOver, Grant | None], Awaitable[ContainerEdits]],
        gpushare_unit: str,
        mig_ids: Callable[[str, Iterable[GpuShare]], Awaitable[MigIds]],
        remote: Callable[[m.HandOver], Awaitable[ContainerEdits]],
    ) -> None:
        """`grant_of` returns a pod's grant by UID, `gpus` this node's GPUs by UUID, `nics` its network cards by name.

        `enforced` prepares what the share's strategy needs, and returns the edits for it. `mig_ids` returns the ids of
        the MIG instances of the pod with that UID; they exist then. `remote` returns the edits of a container that
        uses a GPU of another node.
        """
        self._specs, self._grant_of, self._gpus, self._enforced = specs, grant_of, gpus, enforced
        self._unit, self._host, self._nics = gpushare_unit, host, nics
        self._driver = Driver(host, os.uname().machine)
        self._mig_ids, self._remote = mig_ids, remote

    async def write(self, names: Iterable[str], order: m.HandOver) -> None:
        """See `handover.base.SpecWriter`; also raises Hung if NVML does not answer."""
        if order.remote is not None:
            # No device of this node, and no driver: what it needs comes from the client's edits.
            env = environment.kerf(order)
            self._specs.write(
                names, order.uid, order.container, merged(ContainerEdits(env=env), await self._remote(order))
            )
            return
        mig_ids = await self._mig_ids(order.uid, order.share.gpus)
        gpus, grant = self._gpus(), self._grant_of(order.uid)
        env = environment.kerf(order)
        if grant is not None:
            env += environment.of_dialect(order, grant, gpus, self._unit)
        cards = rdma.edits(self._host, () if grant is None else grant.nics, self._nics())
        driver = self._driver.edits(openable(order.share.gpus, gpus, grant), gpus, mig_ids)
        enforced = await self._enforced(order, grant)  # last: it may take memory from other pods
        self._specs.write(names, order.uid, order.container, merged(driver, ContainerEdits(env=env), cards, enforced))
