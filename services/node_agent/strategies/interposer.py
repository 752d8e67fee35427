"""The strategy `interposer`: Kerf's library in the container enforces the memory limit and the compute share.

It also makes CUDA and NVML report the slice's memory instead of the GPU's. The library is in `native/interposer`.
"""

from __future__ import annotations

from services.node_agent.cdi.spec import ContainerEdits, Mount
from services.node_agent.messages import SliceNotReady
from services.node_agent.strategies.base import NodeTools, Observed, Offer
from services.node_agent.strategies.control_block import FILE_NAMES, PEERS, GpuReading, Reading
from services.node_agent.strategies.rules import Override
from services.node_agent.strategies.slices import Key, Part, Slice
from shared.model.strategy import Strategy
from shared.model.units import MIB

CONTAINER_DIR = "/run/kerf"
"""The control block's folder in the container. The path is built into the library."""
CONTAINER_LIBRARY = f"{CONTAINER_DIR}/libkerf.so"
PRELOAD = "ld.so.preload"
_BIND = ("bind", "nosuid", "nodev")


class NotInstalled(SliceNotReady):
    """The library is not on the host as it should be. The text says why."""

    code = "interposer-not-ready"


class Interposer:
    def __init__(self, strategy: Strategy, tools: NodeTools) -> None:  # noqa: ARG002 - as base.Driver
        self._registry, self._library, self._not_installed = tools.registry, tools.library, tools.not_installed
        self._offer, self._clock = tools.offer, tools.clock
        self._last: dict[Key, tuple[int, Reading]] = {}

    async def probe(self) -> Offer:
        return self._offer()

    def prepare(self, slice_: Slice, override: Override | None = None) -> None:
        self._registry.put(slice_, override)

    def edits(self, slice_: Slice) -> ContainerEdits:
        """Returns the mounts of the library and the control block.

        The library is loaded by `/etc/ld.so.preload` and not by LD_PRELOAD, because a process can unset an environment
        variable, and sudo does not pass it on. Raises NotInstalled: with a library or a list that is empty, or not
        there, the linker would start the container's programs without any limit.
        """
        if why := self._not_installed():
            raise NotInstalled(
                f"the interposer is not installed on this node, and without it nothing is limited: {why}"
            )
        folder = self._registry.folder(slice_.key)
        files = tuple(
            Mount(
                host_path=str(folder / name),
                container_path=f"{CONTAINER_DIR}/{name}",
                options=(*_BIND, "ro" if name == "orders" else "rw"),
            )
            for name in FILE_NAMES
        )
        peers = Mount(host_path=str(folder / PEERS), container_path=f"{CONTAINER_DIR}/{PEERS}", options=(*_BIND, "ro"))
        library = Mount(host_path=str(self._library), container_path=CONTAINER_LIBRARY, options=(*_BIND, "ro"))
        preload = Mount(
            host_path=str(self._library.with_name(PRELOAD)), container_path=f"/etc/{PRELOAD}", options=(*_BIND, "ro")
        )
        return ContainerEdits(mounts=(library, *files, peers, preload))

    def adjust(self, key: Key, override: Override) -> None:
        self._registry.set_override(key, override)

    def observe(self, key: Key) -> tuple[Observed, ...]:
        found = self._registry.read(key)
        slice_ = next((s for s in self._registry.slices if s.key == key), None)
        if found is None or slice_ is None:
            return ()
        if found.damage and not found.gpus:
            counted = 0 if found.is_known else None
            return tuple(
                Observed(
                    uuid=p.uuid,
                    memory_limit_mib=p.memory_mib,
                    granted_mib=p.memory_mib,
                    memory_mib=counted,
                    compute_limit_milli=p.compute_milli,
                    compute_milli=counted,
                    damage=found.damage,
                )
                for p in slice_.parts
            )
        now = self._clock()
        since, before = self._last.get(key, (now, Reading()))
        self._last[key] = (now, found)
        was = {gpu.uuid: gpu for gpu in before.gpus}
        limits = {part.uuid: part for part in slice_.parts}
        return tuple(
            _observed(
                gpu,
                was.get(gpu.uuid),
                limits[gpu.uuid],
                now - since,
                found.damage,
                lent_mib=self._registry.loan(key, gpu.uuid).limit_mib,
            )
            for gpu in found.gpus
        )

    def release(self, key: Key) -> None:
        self._last.pop(key, None)
        self._registry.drop(key)


def _observed(
    gpu: GpuReading, before: GpuReading | None, limit: Part, span_ns: int, damage: str, *, lent_mib: int
) -> Observed:
    if before is None or span_ns <= 0:
        used = waited = launches = launch_us = None
    else:
        used_ns, count = gpu.used_ns - before.used_ns, gpu.launches - before.launches
        used = _clamped(used_ns * 1000 // span_ns)
        waited = _clamped((gpu.waited_ns - before.waited_ns) * 1000 // span_ns)
        launches = _clamped(count * 1_000_000_000 // span_ns) if count > 0 else None
        launch_us = _clamped(used_ns // count // 1000) if count > 0 else None
    return Observed(
        uuid=gpu.uuid,
        memory_limit_mib=limit.memory_mib + lent_mib,
        granted_mib=limit.memory_mib,
        memory_mib=-(-gpu.held_bytes // MIB),
        peak_mib=-(-gpu.peak_bytes // MIB),
        refused=_clamped(gpu.refused),
        compute_limit_milli=limit.compute_milli,
        compute_milli=used,
        waited_milli=waited,
        launches_per_s=launches,
        launch_us=launch_us,
        damage=damage,
    )


def _clamped(amount: int) -> int:
    """The container can write its counters, so they can hold any value."""
    return max(0, min(amount, 1 << 31))
