"""A container's page on the host: three files (interposer/control_block.h) and the folder of its GPUs' other containers.

The orders are mapped: nobody but the agent can write or cut them. What the container can write is only ever read with
`pread`: a container that cuts its own counters must not take the agent down with a bus error.

A field is written by ctypes as one aligned store of its own size, which is all that the interposer relies on.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from services.node_agent.strategies import layout
from services.node_agent.strategies.slices import Key

FILE_NAMES = ("orders", "counters", "signal")
PEERS = "peers"
FILE_MODES = {"orders": 0o644, "counters": 0o666, "signal": 0o666}
"""A container may run as anybody. The orders are mounted read-only, and are root's, besides."""


class GpuRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a container may do on one GPU. `period_ns` 0: it may begin work at any time."""

    uuid: str
    memory_limit_bytes: int = layout.NO_LIMIT
    compute_milli: int = 0
    in_flight_us: int = 0
    gate_closed: bool = False
    period_ns: int = 0
    window_start_ns: int = 0
    window_ns: int = 0


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """All that the agent says to a container. `peers`: whose work it gives way to, where `low`; else who looks at its work."""

    gpus: tuple[GpuRule, ...]
    low: bool = False
    paused: bool = False
    floor_milli: int = 0
    idle_for_ns: int = 0
    peers: tuple[Key, ...] = ()


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a container says that it does on one GPU. Sums since it was made."""

    uuid: str
    account_bytes: int
    peak_bytes: int
    refused: int
    launches: int
    used_ns: int
    waited_ns: int
    untimed: int


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """`damage`: what a container must have done to its page; empty where it is whole."""

    gpus: tuple[GpuReading, ...] = ()
    attaches: int = 0
    reclaimed: int = 0
    full: int = 0
    damage: str = ""


class ControlBlockError(OSError):
    """A page cannot be made: its container must not start."""


class ControlBlock:
    """One container's. Of its files those that stand already are kept: processes may have them mapped."""

    def __init__(self, folder: Path, clock: Callable[[], int]) -> None:
        """Raises OSError."""
        self.folder, self._clock = folder, clock
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PEERS).mkdir(exist_ok=True)
        for name in FILE_NAMES:
            _make(folder / name)
        with (folder / "orders").open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(layout.Orders))
        self._orders = layout.Orders.from_buffer(self._map)
        self.rules: Rules | None = None
        self._uuids: tuple[str, ...] = ()
        self._of_driver = (0, 0)

    def write(self, rules: Rules, *, context_bytes: int, pool_chunk_bytes: int = 0, driver_path: str = "") -> None:
        """Says it, where it is news. Raises ValueError on what no page can hold: then nothing has changed.

        `context_bytes`: charged to each process for its context on a GPU. `pool_chunk_bytes`: what a memory pool takes at once; 0
        where nobody has measured it.
        """
        if (rules, context_bytes, pool_chunk_bytes) == (self.rules, *self._of_driver):
            return
        if len(rules.gpus) > layout.MAX_GPUS:
            raise ValueError(f"a page holds {layout.MAX_GPUS} GPUs, the slice has {len(rules.gpus)}")
        if len(rules.peers) > layout.MAX_PEERS:
            raise ValueError(f"a slice gives way to {layout.MAX_PEERS} others at most, this one to {len(rules.peers)}")
        raw = [layout.uuid_bytes(gpu.uuid) for gpu in rules.gpus]
        path = driver_path.encode()
        if len(path) >= layout.PATH_BYTES:
            raise ValueError(f"the driver's path is longer than {layout.PATH_BYTES - 1} bytes: {driver_path}")
        self._link(rules.peers)
        at = self._orders
        at.heartbeat_ns = self._clock()
        for place, (gpu, uuid) in enumerate(zip(rules.gpus, raw, strict=True)):
            self._write_gpu(at.gpu[place], gpu, uuid, context_bytes)
        at.gpu_count = len(rules.gpus)
        for place, key in enumerate(rules.peers):
            at.peer[place].value = _alias(key).encode()
        at.peer_count = len(rules.peers)
        at.driver_path = path
        at.pool_chunk_bytes = pool_chunk_bytes
        at.low_floor_milli, at.idle_for_ns = rules.floor_milli, rules.idle_for_ns
        at.tier, at.paused = layout.LOW if rules.low else layout.NORMAL, int(rules.paused)
        at.generation += 1
        self._of_driver = context_bytes, pool_chunk_bytes
        self.rules, self._uuids = rules, tuple(gpu.uuid for gpu in rules.gpus)

    def heartbeat(self) -> None:
        """The agent lives: what it says to wait for goes on."""
        self._orders.heartbeat_ns = self._clock()

    def busy_until_ns(self) -> int:
        """When the container's work ends by its own estimate, on whichever GPU last. Raises OSError where the file is gone."""
        size = ctypes.sizeof(layout.Signal)
        with (self.folder / "signal").open("rb") as file:
            raw = os.pread(file.fileno(), size, 0)  # the container may have grown it beyond any memory
        if len(raw) < size:
            return 0
        at = layout.Signal.from_buffer_copy(raw)
        return max((int(at.gpu[place].busy_until_ns) for place in range(len(self._uuids))), default=0)

    def read(self) -> Reading:
        """Raises OSError where the file is gone."""
        size = ctypes.sizeof(layout.Counters)
        with (self.folder / "counters").open("rb") as file:
            raw, found = os.pread(file.fileno(), size, 0), os.fstat(file.fileno()).st_size
        if len(raw) < size:
            return Reading(damage=f"its counters were cut to {len(raw)} bytes")
        at = layout.Counters.from_buffer_copy(raw)
        damage = ""
        if (at.magic, at.version, at.size_bytes) != (layout.COUNTERS_MAGIC, layout.VERSION, size):
            damage = "the head of its counters was overwritten"
        elif found > size:
            damage = f"its counters were grown to {found} bytes"
            os.truncate(self.folder / "counters", size)  # what it wrote there fills the node's memory
        damage = damage or self._signal_damage()
        gpus = tuple(_reading(uuid, at.gpu[place]) for place, uuid in enumerate(self._uuids))
        return Reading(gpus=gpus, attaches=at.attaches, reclaimed=at.reclaimed, full=at.full, damage=damage)

    def _signal_damage(self) -> str:
        """What is wrong with the signal's length. It gets its length back: what was grown fills the node's memory, and what was
        cut kills those who read it."""
        path, size = self.folder / "signal", ctypes.sizeof(layout.Signal)
        found = path.stat().st_size
        if found == size:
            return ""
        os.truncate(path, size)
        return f"its signal was {'grown' if found > size else 'cut'} to {found} bytes"

    def close(self) -> None:
        """Lets go of it; the files stay."""
        del self._orders
        self._map.close()

    def _write_gpu(self, at: layout.GpuOrders, gpu: GpuRule, uuid: bytes, context_bytes: int) -> None:
        ctypes.memmove(at.uuid, uuid, 16)
        at.memory_limit_bytes, at.context_bytes = gpu.memory_limit_bytes, context_bytes
        at.compute_milli, at.in_flight_us, at.gate = gpu.compute_milli, gpu.in_flight_us, int(gpu.gate_closed)
        at.period_ns, at.window_start_ns, at.window_ns = gpu.period_ns, gpu.window_start_ns, gpu.window_ns

    def _link(self, peers: Iterable[Key]) -> None:
        """Their signals stand in this container's folder under names that say nothing of them."""
        wanted = {_alias(key): self.folder.parent / folder_name(key) / "signal" for key in peers}
        have = {path.name for path in (self.folder / PEERS).iterdir()}
        for name in have - wanted.keys():
            (self.folder / PEERS / name).unlink(missing_ok=True)
        for name in wanted.keys() - have:
            with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile: a signal that is not there is idle
                os.link(wanted[name], self.folder / PEERS / name)


def folder_name(key: Key) -> str:
    """The entry of a ResourceClaim has slashes where a container's name has none."""
    return f"{key[0]}-{key[1].replace('/', '.')}"


def remove(folder: Path) -> None:
    """Raises OSError. Nothing where it is gone already."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _alias(key: Key) -> str:
    return hashlib.blake2b("/".join(key).encode(), digest_size=16).hexdigest()


def _make(path: Path) -> None:
    """Whole or not at all; one that stands and is whole is kept."""
    struct, magic = layout.KINDS[path.name]
    size = ctypes.sizeof(struct)
    if path.exists() and path.stat().st_size >= size:
        return
    made = struct(magic=magic, version=layout.VERSION, size_bytes=size)
    beside = path.with_suffix(".new")
    beside.write_bytes(bytes(made))
    beside.chmod(FILE_MODES[path.name])
    beside.replace(path)


def _reading(uuid: str, at: layout.GpuCounters) -> GpuReading:
    return GpuReading(
        uuid=uuid,
        account_bytes=at.account & layout.ACCOUNT_BYTES,
        peak_bytes=at.peak_bytes,
        refused=at.refused,
        launches=at.launches,
        used_ns=at.used_ns,
        waited_ns=at.waited_ns,
        untimed=at.untimed,
    )
