"""A container's control block on the host: three files, and a folder of its peers' signals.

The files are described in `native/interposer/control_block.h`.

The agent maps the file `orders`, because only the agent can write or truncate it. It reads the files that the container
can write with `pread` only: a container that truncates its own counters must not kill the agent with a bus error
(SIGBUS). It keeps all files open, so that no process can make it wait by a lease (`kept_file.py`).

ctypes writes a field as one aligned store of the field's size. The interposer relies on nothing more.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import mmap
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from services.node_agent.strategies import layout, selinux
from services.node_agent.strategies.kept_file import KeptFile
from services.node_agent.strategies.slices import Key

FILE_NAMES = ("orders", "counters", "signal")
PEERS = "peers"
FILE_MODES = {"orders": 0o644, "counters": 0o666, "signal": 0o666}
"""File modes. A container may run as any user. `orders` belongs to root, and is also mounted read-only."""


class GpuRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a container may do on one GPU. `period_ns` 0: the container may begin work at any time."""

    uuid: str
    memory_limit_bytes: int = layout.NO_LIMIT
    shown_bytes: int = 0
    """The memory that CUDA and NVML report as the GPU's; 0: the limit."""
    compute_milli: int = 0
    lent_milli: int = 0
    """GPU time beyond `compute_milli`, while no peer is busy."""
    in_flight_us: int = 0
    gate_closed: bool = False
    period_ns: int = 0
    window_start_ns: int = 0
    window_ns: int = 0


class Surcharge(msgspec.Struct, frozen=True, kw_only=True):
    """What a container loses on one GPU because NVML sees more of it than its counters say (`surcharges.py`)."""

    memory_bytes: int = 0
    """Lowers its memory limit for new allocations."""
    private_milli: int = 0
    """The rate of each process's private token bucket; 0: the container's share."""


NO_SURCHARGE = Surcharge()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """All rules that the agent gives a container.

    `peers`: if `low`, the slices to whose work it yields; otherwise the slices that watch its signal. If there are more
    than `layout.MAX_PEERS`, some of them.
    """

    gpus: tuple[GpuRule, ...]
    low: bool = False
    paused: bool = False
    floor_milli: int = 0
    idle_for_ns: int = 0
    peers: tuple[Key, ...] = ()
    peers_held: bool = False
    """The agent holds all of them, so while its heartbeat is fresh this slice has its GPUs for itself."""
    hides_others: bool = False
    """Its programs see the GPUs of the rules alone, of those that the container could open."""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a container reports about its use of one GPU. Sums since the control block was created."""

    uuid: str
    account_bytes: int
    """What is charged. It has the memory of a dead process until another process of the container needs it."""
    held_bytes: int
    """The same without that of dead processes."""
    peak_bytes: int
    refused: int
    launches: int
    used_ns: int
    waited_ns: int
    untimed: int


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A container's counters. `damage` says how the container has damaged its files; empty if they are intact.

    Without `gpus` the counters are damaged themselves. Then either the container has destroyed them, or, if not
    `is_known`, they cannot be read now, and what they say is unknown.
    """

    gpus: tuple[GpuReading, ...] = ()
    is_known: bool = True
    attaches: int = 0
    reclaimed: int = 0
    full: int = 0
    damage: str = ""


class ControlBlock:
    """One container's control block."""

    def __init__(self, folder: Path, clock: Callable[[], int]) -> None:
        """Creates the files that are missing and keeps the others, because processes may have them mapped. Raises
        OSError."""
        self.folder, self._clock = folder, clock
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PEERS).mkdir(exist_ok=True)
        for name in FILE_NAMES:
            _make(folder / name)
        selinux.label(*(folder / name for name in (*FILE_NAMES, PEERS)))
        self._files = {name: KeptFile(folder / name) for name in FILE_NAMES}
        self._map: mmap.mmap | None = None
        self._orders = self._map_orders()
        self.rules: Rules | None = None
        self._costs = (0, 0)
        self._driver_path = b""
        self._uuids: tuple[str, ...] = ()
        self._surcharges: Mapping[str, Surcharge] = {}

    def write(self, rules: Rules, *, context_bytes: int, pool_chunk_bytes: int = 0, driver_path: str = "") -> None:
        """Writes the rules if they have changed; while a process holds a lease on the orders, as soon as it ends.

        `context_bytes` is charged to each process for its context on a GPU. `pool_chunk_bytes` is the amount that a
        memory pool takes at a time; 0 if it has not been measured. Raises ValueError if the rules do not fit; then
        nothing has changed.
        """
        if (rules, (context_bytes, pool_chunk_bytes)) == (self.rules, self._costs):
            return
        if len(rules.gpus) > layout.MAX_GPUS:
            raise ValueError(
                f"a control block holds at most {layout.MAX_GPUS} GPUs, but the slice has {len(rules.gpus)}"
            )
        if len(rules.peers) > layout.MAX_PEERS:
            raise ValueError(
                f"a slice can yield to at most {layout.MAX_PEERS} others, but this one has {len(rules.peers)} peers"
            )
        for gpu in rules.gpus:
            layout.uuid_bytes(gpu.uuid)
        path = driver_path.encode()
        if len(path) >= layout.PATH_BYTES:
            raise ValueError(f"the driver's path is longer than {layout.PATH_BYTES - 1} bytes: {driver_path}")
        self._link(rules.peers)
        self.rules, self._uuids = rules, tuple(gpu.uuid for gpu in rules.gpus)
        self._costs, self._driver_path = (context_bytes, pool_chunk_bytes), path
        if self._orders is not None:
            self._write_orders(self._orders, rules)

    @property
    def is_written(self) -> bool:
        """Whether the container has the rules; not while a process of it holds a lease on the orders."""
        return self._orders is not None

    def limit_bytes(self, uuid: str) -> int:
        """Returns the memory limit that is written: an earlier agent's, until new rules are. 0 if there is none."""
        at, wanted = self._orders, layout.uuid_bytes(uuid)
        known = () if at is None else at.gpu[: min(at.gpu_count, layout.MAX_GPUS)]
        return next((int(gpu.memory_limit_bytes) for gpu in known if bytes(gpu.uuid) == wanted), 0)

    def set_surcharges(self, surcharges: Mapping[str, Surcharge]) -> None:
        """Writes the surcharges, by GPU UUID; GPUs that are not in it have none. They stay until the next call."""
        if surcharges != self._surcharges:
            self._surcharges = surcharges
            if self._orders is not None:
                self._write_surcharges(self._orders)

    def heartbeat(self) -> None:
        """Records that the agent is alive, so that pauses and closed gates stay in effect.

        Raises OSError if the orders cannot be mapped; the next call tries again.
        """
        if self._orders is None:
            self._orders = self._map_orders()
            if self._orders is not None and self.rules is not None:
                self._write_orders(self._orders, self.rules)
        if self._orders is not None:
            self._orders.heartbeat_ns = self._clock()

    def busy_until_ns(self) -> int:
        """Returns when the container's work ends on its last busy GPU, by its own estimate; 0 if its signal cannot be
        read."""
        size = ctypes.sizeof(layout.Signal)
        file = self._files["signal"].descriptor
        # not more: the container may have extended the file beyond any memory
        raw = b"" if file is None else os.pread(file, size, 0)
        if len(raw) < size:
            return 0
        at = layout.Signal.from_buffer_copy(raw)
        return max((int(at.gpu[place].busy_until_ns) for place in range(len(self._uuids))), default=0)

    def read(self) -> Reading:
        """Returns the container's counters, and restores the length of its files. Raises OSError.

        A lease on another file does not prevent it.
        """
        size, file = ctypes.sizeof(layout.Counters), self._files["counters"].descriptor
        if file is None:
            return Reading(damage=_why_not_open(self._files["counters"]), is_known=False)
        raw, found = os.pread(file, size, 0), os.fstat(file).st_size
        if len(raw) < size:
            return Reading(damage=f"its counters were truncated to {len(raw)} bytes")
        at = layout.Counters.from_buffer_copy(raw)
        if (at.magic, at.version, at.size_bytes) != (layout.COUNTERS_MAGIC, layout.VERSION, size):
            return Reading(damage="the header of its counters was overwritten")
        damage = ""
        if found > size:
            damage = f"its counters were extended to {found} bytes"
            self._files["counters"].set_length(size)  # the file system is in the node's memory
        damage = damage or self._signal_damage() or ("" if self._orders is not None else self._files["orders"].problem)
        held = self._held_bytes(file, raw, at)
        gpus = tuple(_reading(uuid, at.gpu[place], held[place]) for place, uuid in enumerate(self._uuids))
        return Reading(gpus=gpus, attaches=at.attaches, reclaimed=at.reclaimed, full=at.full, damage=damage)

    def _held_bytes(self, file: int, raw: bytes, at: layout.Counters) -> list[int]:
        """Returns what the container's living processes have, by the place of the GPU. Raises OSError."""
        dead = [at.process[place] for place, _ in _used_slots(raw) if not _is_locked(file, place)]
        return [
            max(
                0,
                (at.gpu[place].account & layout.ACCOUNT_BYTES) - sum(process.charged_bytes[place] for process in dead),
            )
            for place in range(len(self._uuids))
        ]

    def wants(self) -> bool:
        """Whether a living process of the container has a thread that waits for the GPU. A container that says so
        wrongly waits for its turn as others do. False if it is unknown. Raises OSError."""
        size, file = ctypes.sizeof(layout.Counters), self._files["counters"].descriptor
        raw = b"" if file is None else os.pread(file, size, 0)
        if file is None or len(raw) < size:
            return False
        waiting = layout.Process.waiting.offset
        return any(
            any(raw[at + waiting : at + waiting + 4]) and _is_locked(file, place) for place, at in _used_slots(raw)
        )

    def _signal_damage(self) -> str:
        """Checks the signal's length and restores it. Returns what was wrong, or an empty string.

        An extended file fills the node's memory. A truncated file kills processes that read a mapping of it.
        """
        file = self._files["signal"].descriptor
        if file is None:
            return _why_not_open(self._files["signal"])
        found, size = os.fstat(file).st_size, ctypes.sizeof(layout.Signal)
        if found == size:
            return ""
        self._files["signal"].set_length(size)
        return f"its signal was {'extended' if found > size else 'truncated'} to {found} bytes"

    def close(self) -> None:
        """Unmaps the orders and closes the files. They stay."""
        self._orders = None
        if self._map is not None:
            self._map.close()
        for kept in self._files.values():
            kept.close()

    def _map_orders(self) -> layout.Orders | None:
        """Maps the orders, and returns None while a process holds a lease on them. The mapping keeps the file open."""
        file = self._files["orders"].descriptor
        if file is None:
            return None
        self._map = mmap.mmap(file, ctypes.sizeof(layout.Orders))
        self._files["orders"].close()
        return layout.Orders.from_buffer(self._map)

    def _write_orders(self, at: layout.Orders, rules: Rules) -> None:
        context_bytes, pool_chunk_bytes = self._costs
        at.heartbeat_ns = self._clock()
        if rules.paused:
            at.paused = 1  # before a limit of 0: an allocation waits then, and does not fail
        if [bytes(gpu.uuid) for gpu in at.gpu[: at.gpu_count]] != [layout.uuid_bytes(gpu.uuid) for gpu in rules.gpus]:
            at.moves += int(at.gpu_count > 0)
        # It never ends: what the container can open stays, also when its grant is not known any more.
        at.hides_others |= int(rules.hides_others)
        for place, gpu in enumerate(rules.gpus):
            self._write_gpu(at.gpu[place], gpu, layout.uuid_bytes(gpu.uuid), context_bytes)
        at.gpu_count = len(rules.gpus)
        for place, key in enumerate(rules.peers):
            at.peer[place].value = _alias(key).encode()
        at.peer_count, at.peers_held = len(rules.peers), int(rules.peers_held)
        at.driver_path = self._driver_path
        at.pool_chunk_bytes = pool_chunk_bytes
        at.low_floor_milli, at.idle_for_ns = rules.floor_milli, rules.idle_for_ns
        at.tier, at.paused = layout.LOW if rules.low else layout.NORMAL, int(rules.paused)
        self._write_surcharges(at)
        at.generation += 1

    def _write_surcharges(self, at: layout.Orders) -> None:
        for place, uuid in enumerate(self._uuids):
            found = self._surcharges.get(uuid, NO_SURCHARGE)
            at.gpu[place].surcharge_bytes, at.gpu[place].private_milli = found.memory_bytes, found.private_milli

    def _write_gpu(self, at: layout.GpuOrders, gpu: GpuRule, uuid: bytes, context_bytes: int) -> None:
        ctypes.memmove(at.uuid, uuid, 16)
        at.memory_limit_bytes, at.context_bytes = gpu.memory_limit_bytes, context_bytes
        at.compute_milli, at.in_flight_us, at.gate = gpu.compute_milli, gpu.in_flight_us, int(gpu.gate_closed)
        at.period_ns, at.window_start_ns, at.window_ns = gpu.period_ns, gpu.window_start_ns, gpu.window_ns
        at.shown_bytes, at.lent_milli = gpu.shown_bytes, gpu.lent_milli

    def _link(self, peers: Iterable[Key]) -> None:
        """Links the peers' signal files into this container's folder, under names that do not identify the peers."""
        wanted = {_alias(key): self.folder.parent / folder_name(key) / "signal" for key in peers}
        have = {path.name for path in (self.folder / PEERS).iterdir()}
        for name in have - wanted.keys():
            (self.folder / PEERS / name).unlink(missing_ok=True)
        for name in wanted.keys() - have:
            with contextlib.suppress(FileNotFoundError):  # the peer has ended meanwhile: no signal means idle
                os.link(wanted[name], self.folder / PEERS / name)


def _used_slots(raw: bytes) -> Iterator[tuple[int, int]]:
    """The slots of counters that processes have taken, living or dead: place and offset in bytes."""
    begin, each = layout.Counters.process.offset, ctypes.sizeof(layout.Process)
    for place in range(layout.MAX_PROCESSES):
        if raw[at := begin + place * each] & 1:
            yield place, at


def _is_locked(file: int, place: int) -> bool:
    """Whether the process of a slot lives: it holds a lock on a byte of the counters (control_block.h)."""
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, layout.LOCK_AT + place, 1, 0)
    (kind,) = struct.unpack_from("h", fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
    return bool(kind != fcntl.F_UNLCK)


def folder_name(key: Key) -> str:
    """Returns the folder name of a container. The name of a ResourceClaim's entry contains slashes, a container's does
    not."""
    return f"{key[0]}-{key[1].replace('/', '.')}"


def remove(folder: Path) -> None:
    """Removes a control block's folder. Does nothing if it is gone already. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _alias(key: Key) -> str:
    return hashlib.blake2b("/".join(key).encode(), digest_size=16).hexdigest()


def _why_not_open(kept: KeptFile) -> str:
    """Returns why a file without a descriptor has none. Its lease may have ended since the descriptor was asked for."""
    return kept.problem or f"its file {kept.path.name} is not open yet"


def _make(path: Path) -> None:
    """Creates one file atomically. Keeps an existing file that has its full size."""
    struct, magic = layout.KINDS[path.name]
    size = ctypes.sizeof(struct)
    if path.exists() and path.stat().st_size >= size:
        return
    made = struct(magic=magic, version=layout.VERSION, size_bytes=size)
    beside = path.with_suffix(".new")
    beside.write_bytes(bytes(made))
    beside.chmod(FILE_MODES[path.name])
    beside.replace(path)


def _reading(uuid: str, at: layout.GpuCounters, held_bytes: int) -> GpuReading:
    return GpuReading(
        uuid=uuid,
        account_bytes=at.account & layout.ACCOUNT_BYTES,
        held_bytes=held_bytes,
        peak_bytes=at.peak_bytes,
        refused=at.refused,
        launches=at.launches,
        used_ns=at.used_ns,
        waited_ns=at.waited_ns,
        untimed=at.untimed,
    )
