"""Gives grants back that can never start again, because their GPU is not what it was. Pure.

A GPU may be missing when its node has booted, an administrator may have replaced it, changed its MIG mode or a fixed
layout. The containers of its pods are then refused for ever (`gate.refusal`), and nothing else would end that.
"""

from __future__ import annotations

from services.node_agent import gate, moving
from services.node_agent.gpu_state.node_gpus import NodeGpus
from services.node_agent.grant_store import GrantStore
from services.node_agent.state import KnownGrant
from shared.model.gpu import Gpu
from shared.model.grant import GpuShare

AFTER_S = 600.0
"""A GPU that is being reset or found late, and a layout that is made after a boot, is there sooner."""
REASONS = {
    "gpu-gone": "GPU {} is no longer on its node",
    "gpu-mig-mode": "the MIG mode of GPU {} was changed",
    "mig-instance-gone": "GPU {} no longer has the MIG instance",
}
"""By the code of a refusal that no waiting ends."""


class GoneGpus:
    """Grants of which nothing runs, on GPUs that are gone."""

    def __init__(self, node: str, store: GrantStore, gpus: NodeGpus) -> None:
        self._node, self._store, self._gpus = node, store, gpus
        self._since: dict[str, float] = {}
        """By grant."""
        self._boot_id = ""
        self._had: set[str] = set()
        """The UUIDs of the MIG instances that were offered in this boot: their layout is made."""

    def due(self, now: float) -> list[tuple[KnownGrant, str]]:
        """The grants that are to be given back for good now, each with the reason."""
        self._note_instances()
        gone = {known.grant_id: (known, why) for known in self._store.known if (why := self._why(known))}
        self._since = {grant_id: self._since.get(grant_id, now) for grant_id in gone}
        return [gone[grant_id] for grant_id, since in self._since.items() if now - since >= AFTER_S]

    def _note_instances(self) -> None:
        if self._boot_id != self._gpus.boot_id:
            self._boot_id, self._had = self._gpus.boot_id, set()
        self._had.update(one.uuid for gpu in self._gpus.by_uuid.values() for one in gpu.mig_instances if one.uuid)

    def _why(self, known: KnownGrant) -> str:
        """Why nothing can start by this grant again; empty if something may, or may still run."""
        if known.unbound or known.grant.remote is not None or moving.is_under_way(known):
            return ""
        gpus = self._gpus.by_uuid
        if not gpus or self._store.is_running(known.grant_id):
            return ""  # without any GPU the driver may not be loaded yet
        for part in known.grant.grant.containers.values():
            for share in part.gpus:
                gpu = gpus.get(share.uuid)
                code, _ = (share.node == self._node and gate.refusal(share, gpu, {}, {})) or ("", "")
                if code in REASONS and not (code == "mig-instance-gone" and self._may_be_made_yet(share, gpu)):
                    return REASONS[code].format(share.uuid)
        return ""

    def _may_be_made_yet(self, share: GpuShare, gpu: Gpu | None) -> bool:
        """Whether the layout of a GPU without instances may not have been made, or proven, since the boot. Where the
        instance was there it has been: it is gone like one beside others, as where all of them were the agent's own."""
        return gpu is not None and not gpu.mig_instances and (share.mig is None or share.mig.uuid not in self._had)
