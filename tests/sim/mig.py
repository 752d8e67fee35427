"""MIG in the simulation: GPUs in MIG mode, cut on demand or with a fixed layout, and pods that request instances.

M1: the instances of a GPU that are granted or in use never overlap: of its eight memory slices, its seven compute
slices and its one set of media extensions. M2: a GPU in MIG mode is given as instances alone, one of a fixed layout
only as the instances that it has, and no other GPU as instances. How large instances are is read from a table here, and
not from the product's.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from shared.model import names
from shared.model.gpu import Inventory
from shared.model.grant import GpuShare, Grant
from shared.model.mig import MigInstance
from tests.sim.nats import Violation

if TYPE_CHECKING:
    from tests.sim.nodes import SimNode

PART = 0.25
"""How many worlds have MIG."""
MEMORY_SLICES = {"1g.10gb": 1, "1g.10gb+me": 1, "1g.20gb": 2, "2g.20gb": 2, "3g.40gb": 4, "4g.40gb": 4, "7g.80gb": 8}
"""Of an 80 GB GPU, as in NVIDIA's MIG User Guide."""
COMPUTE_SLICES = 7
LAYOUTS: tuple[tuple[tuple[str, int], ...], ...] = (
    (("3g.40gb", 4), ("2g.20gb", 2), ("1g.10gb", 0), ("1g.10gb", 1)),
    tuple(("1g.10gb", start) for start in range(7)),
    (("4g.40gb", 0), ("3g.40gb", 4)),
)
ASKS = (
    ("1g.10gb", 1),
    ("1g.10gb", 2),
    ("1g.10gb.me", 1),
    ("1g.20gb", 1),
    ("2g.20gb", 1),
    ("3g.40gb", 1),
    ("4g.40gb", 1),
    ("7g.80gb", 1),
)


class Mig:
    """All is drawn from its own generator, so that worlds without MIG stay what they are."""

    def __init__(self, seed: int, *, possible: bool) -> None:
        self.rng = random.Random(f"{seed} mig")
        self.drawn = self.rng.random() < PART and possible
        self._layouts: dict[str, tuple[MigInstance, ...] | None] = {}
        """By UUID of a GPU: None where it is not in MIG mode, else its instances; without any it is cut on demand."""
        self.seen = 0
        """How many instances were in use at once, at most."""

    def inventory(self, seen: Inventory) -> Inventory:
        """Each GPU keeps its mode and layout for ever."""
        if not self.drawn:
            return seen
        gpus = []
        for gpu in seen.gpus:
            if gpu.uuid not in self._layouts:
                self._layouts[gpu.uuid] = self._drawn_layout(gpu.uuid)
            layout = self._layouts[gpu.uuid]
            gpus.append(
                gpu
                if layout is None
                else msgspec.structs.replace(gpu, mig_enabled=True, mig_on_demand=not layout, mig_instances=layout)
            )
        return msgspec.structs.replace(seen, gpus=tuple(gpus), strategies=(*seen.strategies, "mig"))

    def _drawn_layout(self, uuid: str) -> tuple[MigInstance, ...] | None:
        mode = self.rng.choice(("whole", "on demand", "on demand", "fixed"))
        if mode == "whole":
            return None
        layout = self.rng.choice(LAYOUTS) if mode == "fixed" else ()
        return tuple(
            MigInstance(profile=profile, start=start, uuid=f"MIG-{uuid}-{number}")
            for number, (profile, start) in enumerate(layout)
        )

    def ask(self, ask: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """What a pod requests instead, and annotations: half of the pods want instances, some of them by an amount."""
        if not self.drawn or self.rng.random() < 0.5:
            return dict(ask), {}
        if self.rng.random() < 0.3:
            return {names.RESOURCE_GPU_MEMORY: self.rng.choice(("8Gi", "20Gi"))}, {names.ANNOTATION_ISOLATION: "hard"}
        profile, count = self.rng.choice(ASKS)
        return {f"{names.PREFIX_MIG}{profile}": str(count)}, {}

    def check(self, granted: Iterable[Grant], nodes: Iterable[SimNode]) -> None:
        """M1 and M2 of what is granted, and of what runs by grants that are not among these."""
        if not self.drawn:
            return
        by_gpu: dict[str, dict[tuple[str, str, str], GpuShare]] = {}
        for grant in granted:
            for name, part in grant.containers.items():
                for share in part.gpus:
                    by_gpu.setdefault(share.uuid, {})[grant.grant_id, name, _place(share)] = share
        for node in nodes:
            for (_, container), (grant_id, taken) in node.running.items():
                for share in taken.gpus:
                    by_gpu.setdefault(share.uuid, {})[grant_id, container, _place(share)] = share
        for uuid, shares in by_gpu.items():
            self._check_gpu(uuid, list(shares.values()))

    def _check_gpu(self, uuid: str, shares: list[GpuShare]) -> None:
        layout = self._layouts.get(uuid)
        instances = [share.mig for share in shares if share.mig is not None]
        if (layout is None and instances) or (layout is not None and len(instances) != len(shares)):
            raise Violation(f"M2: {uuid} is {'not ' if layout is None else ''}in MIG mode, and has {shares}")
        has = {(one.profile, one.start) for one in layout or ()}
        if layout and (other := [one for one in instances if (one.profile, one.start) not in has]):
            raise Violation(f"M2: {uuid} has not the instances {other}")
        self.seen = max(self.seen, len(instances))
        taken = [one.start + i for one in instances for i in range(MEMORY_SLICES[one.profile])]
        compute = sum(int(one.profile[0]) for one in instances)
        media = sum(one.profile.endswith("+me") for one in instances)
        if len(taken) != len(set(taken)) or compute > COMPUTE_SLICES or media > 1:
            raise Violation(f"M1: instances of {uuid} overlap: {instances}")


def _place(share: GpuShare) -> str:
    return "" if share.mig is None else f"{share.mig.profile} at {share.mig.start}"
