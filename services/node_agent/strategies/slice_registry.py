"""The slices of all containers on this node. Writes the rules of every slice into its control block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import structlog

from services.node_agent.gate import Occupancy
from services.node_agent.strategies import control_block, rules
from services.node_agent.strategies.control_block import ControlBlock, Reading, Surcharge
from services.node_agent.strategies.kept_file import allow_descriptors
from services.node_agent.strategies.rules import Override, Policy
from services.node_agent.strategies.slice_files import SliceFiles
from services.node_agent.strategies.slices import Key, Slice
from shared.contracts.node_commands import LiveSlice
from shared.model.units import MIB


class Loan(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one GPU beyond what a slice is guaranteed."""

    limit_mib: int = 0
    """So much more it may allocate up to now."""
    held_mib: int = 0
    """So much more it may hold: what was lent to it earlier and has not been given back counts."""


NO_LOAN = Loan()

log = structlog.get_logger("slice_registry")


class SliceRegistry:
    def __init__(
        self,
        folder: Path,
        policy: Policy,
        clock: Callable[[], int],
        costs: Callable[[], tuple[int, int]] = lambda: (0, 0),
        files: SliceFiles | None = None,
    ) -> None:
        """`folder` holds the control blocks. `files` is its file system; without one, containers can fill the host's.

        `clock` returns nanoseconds of CLOCK_MONOTONIC. `costs` returns the bytes of GPU memory that a process's context
        takes on this node, and the bytes that a memory pool takes at a time; 0 means unknown.
        """
        self._folder, self._policy, self._clock, self._costs = folder, policy, clock, costs
        self._files = files or SliceFiles(folder)
        self._slices: dict[Key, Slice] = {}
        self._control_blocks: dict[Key, ControlBlock] = {}
        self._overrides: dict[Key, Override] = {}
        self._not_adopted: set[Key] = set()
        self._lent: dict[Key, dict[str, Loan]] = {}
        """By GPU, for slices that may use more memory than they are guaranteed."""
        self._on_host: frozenset[Key] = frozenset()

    @property
    def slices(self) -> tuple[Slice, ...]:
        return tuple(self._slices.values())

    @property
    def not_adopted(self) -> frozenset[Key]:
        """The running containers whose control blocks could not be taken over: what they use is unknown."""
        return frozenset(self._not_adopted)

    def put(self, slice_: Slice, override: Override | None = None) -> None:
        """Adds or replaces a slice: creates its control block, and writes the rules of all slices.

        `override` is the slice's override from now on; None keeps the last one. If it raises OSError or ValueError,
        nothing has changed.
        """
        key = slice_.key
        before, old_override = self._slices.get(key), self._overrides.get(key)
        before_lent = self._lent.get(key)
        self._slices[key] = slice_
        if before is not None and before_lent is not None:
            self._lent[key] = _lent_beside(before, slice_, before_lent)
        if override is not None:
            self._overrides[key] = override
        try:
            if key not in self._control_blocks:
                self._control_blocks[key] = self._make(key)
            self._publish()
            self._not_adopted.discard(key)
        except (OSError, ValueError):
            if before is None:
                self._forget(key)
            else:
                self._slices[key] = before
                if before_lent is not None:
                    self._lent[key] = before_lent
                self._overrides[key] = old_override or rules.NO_OVERRIDE
            self._publish()
            raise

    def adopt(self, slices: Iterable[Slice], overrides: Mapping[Key, Override] = {}) -> list[tuple[Slice, Exception]]:
        """Takes over the running slices of an earlier agent. Returns those that failed, each with its error.

        It takes over all of them at once, because rules that are written one by one would tell some slices for a moment
        that they have the GPU to themselves. A slice that fails keeps its last rules, and the others' rules do not
        count with it.
        """
        failed: list[tuple[Slice, Exception]] = []
        allow_descriptors()
        self._files.mount()
        for slice_ in slices:
            try:
                rules.check(slice_)
                self._control_blocks[slice_.key] = self._make(slice_.key)
            except (OSError, ValueError) as error:
                failed.append((slice_, error))
                self._not_adopted.add(slice_.key)
            else:
                self._slices[slice_.key] = slice_
                self._overrides[slice_.key] = overrides.get(slice_.key, rules.NO_OVERRIDE)
                self._lent[slice_.key] = _lent_before(slice_, self._control_blocks[slice_.key])
        # An agent that did not start because of one slice would leave all others without a heartbeat.
        while unwritten := self._publish_each():
            for key, why in unwritten.items():
                failed.append((self._slices[key], why))
                self._not_adopted.add(key)
                self._leave(key)
        return failed

    def set_override(self, key: Key, override: Override) -> None:
        """Sets a slice's override and writes the rules.

        The override lives in this agent's memory: after a restart it must be set again. Raises KeyError if there is no
        such slice, and OSError or ValueError if the rules cannot be written; then nothing has changed.
        """
        before = self._overrides.get(key, rules.NO_OVERRIDE)
        if self._slices[key] and before != override:
            self._overrides[key] = override
            try:
                self._publish()
            except (OSError, ValueError):
                self._overrides[key] = before
                self._publish()
                raise

    @property
    def at_limits(self) -> list[Slice]:
        """The slices with the most GPU time that each may use at some moment."""
        return [
            msgspec.structs.replace(
                slice_,
                parts=tuple(
                    msgspec.structs.replace(part, compute_milli=max(part.compute_milli, part.compute_limit_milli))
                    for part in slice_.parts
                ),
            )
            for slice_ in self._slices.values()
        ]

    def loan(self, key: Key, uuid: str) -> Loan:
        """What is lent to a slice of a GPU's memory."""
        return self._lent.get(key, {}).get(uuid, NO_LOAN)

    def with_loans(self, occupied: Occupancy) -> Occupancy:
        """What slices have on each GPU, with what is lent to them."""
        found = dict(occupied)
        for loans in self._lent.values():
            for uuid, loan in loans.items():
                memory_mib, compute_milli = found.get(uuid, (0, 0))
                found[uuid] = (memory_mib + max(loan.limit_mib, loan.held_mib), compute_milli)
        return found

    def lend(self, loans: Mapping[tuple[Key, str], Loan]) -> None:
        """Sets what these slices may use now beyond what they are guaranteed, by slice and GPU, and writes the rules.

        Raises OSError or ValueError if rules cannot be written: then a limit may still be what it was.
        """
        before = {key: dict(of) for key, of in self._lent.items()}
        for (key, uuid), loan in loans.items():
            if key in self._slices:
                self._lent.setdefault(key, {})[uuid] = loan
        if self._lent != before:
            self._publish()

    @property
    def on_host(self) -> frozenset[Key]:
        """The slices that wait for memory, with what they had on the host: they run and allocate nothing."""
        return self._on_host

    def set_on_host(self, keys: Iterable[Key]) -> None:
        """Sets which slices wait for memory with what they had on the host, and writes the rules. Raises OSError."""
        keys = frozenset(keys) & self._slices.keys()
        if keys != self._on_host:
            self._on_host = keys
            self._publish()

    def override_of(self, key: Key) -> Override:
        return self._overrides.get(key, rules.NO_OVERRIDE)

    def allowed_mib(self, slice_: LiveSlice, uuid: str) -> int:
        """Returns what a slice may hold on a GPU now: less than its grant if it was shrunk for another pod, and more
        while memory is lent to it, or until it has given that back.

        While a slice is paused it is as granted: a checkpoint moves its memory away, and takes time for it.
        """
        granted_mib, _ = slice_.gpus.get(uuid, (0, 0))
        key = (slice_.uid, slice_.container)
        override, held_mib = self.override_of(key), granted_mib + self.loan(key, uuid).held_mib
        return (
            held_mib
            if override.paused
            else max(
                min(granted_mib, override.memory_mib.get(uuid, granted_mib)), held_mib if held_mib > granted_mib else 0
            )
        )

    def drop(self, key: Key) -> None:
        """Removes the slice of a container that has ended. Raises OSError if its files cannot be removed."""
        self._forget(key)
        self._publish()

    def keep_only(self, keys: Iterable[Key]) -> None:
        """Removes all control blocks except those of `keys`, including those of an earlier agent. Raises OSError."""
        kept = set(keys)
        self._not_adopted &= kept
        for key in self._slices.keys() - kept:
            self.drop(key)
        names = {control_block.folder_name(key) for key in kept}
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name not in names:
                    control_block.remove(path)
            self._files.fit()

    def read(self, key: Key) -> Reading | None:
        """Returns the container's own counters, or None if it has no control block."""
        found = self._control_blocks.get(key)
        return None if found is None else found.read()

    def held_bytes(self, key: Key) -> dict[str, int]:
        """Returns what the container's living processes have on each GPU, by its own count; empty if it is unknown.
        Raises OSError."""
        found = self.read(key)
        return {} if found is None else {gpu.uuid: gpu.held_bytes for gpu in found.gpus}

    def is_busy(self, key: Key) -> bool:
        """Whether the container reports work on a GPU. False if it has no control block. True if it reports nothing,
        since its peers are held."""
        found = self._control_blocks.get(key)
        if found is not None and found.rules is not None and found.rules.peers_held:
            return True
        return found is not None and found.busy_until_ns() > self._clock()

    def wants(self, key: Key) -> bool:
        """Whether a thread of the container waits for the GPU; False if that is unknown."""
        found = self._control_blocks.get(key)
        try:
            return found is not None and found.wants()
        except OSError:
            return False  # whoever reads its counters logs it

    def set_surcharges(self, surcharges: Mapping[Key, Mapping[str, Surcharge]]) -> None:
        """Writes what the containers lose, by container and GPU."""
        for key, found in self._control_blocks.items():
            found.set_surcharges(surcharges.get(key, {}))

    def heartbeat(self) -> None:
        """Records in all control blocks that the agent is alive. Logs those that fail; the next call tries again."""
        waited = not self._all_written()
        for key, found in self._control_blocks.items():
            try:
                found.heartbeat()
            except OSError as error:
                log.error(
                    "orders_not_written",
                    pod=key[0],
                    container=key[1],
                    error=str(error),
                    effect="its slice keeps its last rules; a pause ends, and the agent tries again",
                )
        if waited and self._all_written():
            self._publish()
        self._files.fit()

    def age_s(self, key: Key) -> int:
        """Returns for how long the container has had its control block, in seconds by the wall clock.

        By its folder: its files change, and those that peers link change with each of them.
        """
        try:
            made_s = self.folder(key).stat().st_mtime
        except FileNotFoundError:
            return 0
        return max(0, round(time.time() - made_s))

    def folder(self, key: Key) -> Path:
        return self._folder / control_block.folder_name(key)

    def close(self) -> None:
        """Closes all control blocks. The files stay, and the containers keep their last rules."""
        for found in self._control_blocks.values():
            found.close()
        self._control_blocks.clear()
        self._slices.clear()
        self._files.leave()

    def _forget(self, key: Key) -> None:
        if self._leave(key):
            control_block.remove(self.folder(key))
            self._files.fit()

    def _leave(self, key: Key) -> bool:
        """Closes the slice's control block; its files stay. Returns whether it had one."""
        self._slices.pop(key, None)
        self._overrides.pop(key, None)
        self._lent.pop(key, None)
        self._on_host -= {key}
        found = self._control_blocks.pop(key, None)
        if found is not None:
            found.close()
        return found is not None

    def _make(self, key: Key) -> ControlBlock:
        return self._files.make(lambda: ControlBlock(self.folder(key), self._clock))

    def refresh(self) -> None:
        """Writes the rules again, because the costs may have changed: contexts must not be free for later
        allocations."""
        self._publish()

    def _publish(self) -> None:
        """As `_publish_each`; raises the first error."""
        for error in self._publish_each(until_error=True).values():
            raise error

    def _publish_each(self, *, until_error: bool = False) -> dict[Key, OSError | ValueError]:
        """Writes the rules of all slices, first those that lose GPU time, so that no time is given to two slices at
        once. Returns the errors, by slice."""
        errors: dict[Key, OSError | ValueError] = {}
        lent = {key: {uuid: loan.limit_mib for uuid, loan in of.items()} for key, of in self._lent.items()}
        planned = rules.plan(self._slices.values(), self._policy, self._effective_overrides(), lent)
        if not self._all_written():  # a pause that its slice cannot read holds nothing
            planned = {key: msgspec.structs.replace(of, peers_held=False) for key, of in planned.items()}
        context_bytes, pool_chunk_bytes = self._costs()
        for key in sorted(planned, key=lambda k: _grows(self._control_blocks[k].rules, planned[k])):
            try:
                self._control_blocks[key].write(
                    planned[key], context_bytes=context_bytes, pool_chunk_bytes=pool_chunk_bytes
                )
            except (OSError, ValueError) as error:
                errors[key] = error
                if until_error:
                    break
        return errors

    def _all_written(self) -> bool:
        return all(found.is_written for found in self._control_blocks.values())

    def _effective_overrides(self) -> dict[Key, Override]:
        """The overrides, with those of slices whose memory is on the host."""
        return self._overrides | {
            key: msgspec.structs.replace(
                self.override_of(key), paused=True, memory_mib={part.uuid: 0 for part in self._slices[key].parts}
            )
            for key in self._on_host
        }


def _lent_beside(before: Slice, after: Slice, lent: Mapping[str, Loan]) -> dict[str, Loan]:
    """Returns what stays lent to a slice that is guaranteed other amounts: what it is guaranteed more is no loan any
    more."""
    were = {part.uuid: part.memory_mib for part in before.parts}
    found = {}
    for part in after.parts:
        loan = lent.get(part.uuid, NO_LOAN)
        more_mib = max(0, part.memory_mib - were.get(part.uuid, 0))
        most_mib = max(0, part.memory_limit_mib - part.memory_mib)
        found[part.uuid] = Loan(
            limit_mib=min(most_mib, max(0, loan.limit_mib - more_mib)), held_mib=max(0, loan.held_mib - more_mib)
        )
    return found


def _lent_before(slice_: Slice, written: ControlBlock) -> dict[str, Loan]:
    """Returns what an earlier agent has lent a slice: it may go on with that, and may have as much as its limit."""
    lent = {}
    for part in slice_.parts:
        if part.bursts:
            most_mib = part.memory_limit_mib - part.memory_mib
            limit_mib = written.limit_bytes(part.uuid) // MIB - part.memory_mib
            lent[part.uuid] = Loan(limit_mib=max(0, min(limit_mib, most_mib)), held_mib=most_mib)
    return lent


def _grows(before: control_block.Rules | None, after: control_block.Rules) -> bool:
    """Whether the slice gets more GPU time than it had, is resumed, or need not mind its peers any more."""
    if before is None:
        return any(gpu.window_ns or gpu.compute_milli for gpu in after.gpus)
    if (before.paused and not after.paused) or (after.peers_held and not before.peers_held):
        return True
    return sum(gpu.window_ns or gpu.compute_milli for gpu in after.gpus) > sum(
        gpu.window_ns or gpu.compute_milli for gpu in before.gpus
    )
