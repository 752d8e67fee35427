"""The slices of all containers on this node. Writes the rules of every slice into its control block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from services.node_agent.strategies import control_block, rules
from services.node_agent.strategies.control_block import ControlBlock, Reading, Surcharge
from services.node_agent.strategies.kept_file import allow_descriptors
from services.node_agent.strategies.rules import Override, Policy
from services.node_agent.strategies.slice_files import SliceFiles
from services.node_agent.strategies.slices import Key, Slice
from shared.contracts.node_commands import LiveSlice

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
        self._slices[key] = slice_
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
                self._overrides[key] = old_override or rules.NO_OVERRIDE
            self._publish()
            raise

    def adopt(self, slices: Iterable[Slice], overrides: Mapping[Key, Override] = {}) -> list[tuple[Slice, Exception]]:
        """Takes over the running slices of an earlier agent. Returns those that failed, each with its error.

        It takes over all of them at once, because rules that are written one by one would tell some slices for a moment
        that they have the GPU to themselves. A slice that fails keeps its last rules.
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
        self._publish()
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

    def override_of(self, key: Key) -> Override:
        return self._overrides.get(key, rules.NO_OVERRIDE)

    def allowed_mib(self, slice_: LiveSlice, uuid: str) -> int:
        """Returns what a slice may hold on a GPU now: less than its grant if it was shrunk for another pod.

        While a slice is paused it is as granted: a checkpoint moves its memory away, and takes time for it.
        """
        granted_mib, _ = slice_.gpus.get(uuid, (0, 0))
        override = self.override_of((slice_.uid, slice_.container))
        return granted_mib if override.paused else min(granted_mib, override.memory_mib.get(uuid, granted_mib))

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

    def is_busy(self, key: Key) -> bool:
        """Whether the container reports work on a GPU. False if it has no control block."""
        found = self._control_blocks.get(key)
        return found is not None and found.busy_until_ns() > self._clock()

    def set_surcharges(self, surcharges: Mapping[Key, Mapping[str, Surcharge]]) -> None:
        """Writes what the containers lose, by container and GPU."""
        for key, found in self._control_blocks.items():
            found.set_surcharges(surcharges.get(key, {}))

    def heartbeat(self) -> None:
        """Records in all control blocks that the agent is alive. Logs those that fail; the next call tries again."""
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
        self._files.fit()

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
        self._slices.pop(key, None)
        self._overrides.pop(key, None)
        found = self._control_blocks.pop(key, None)
        if found is not None:
            found.close()
            control_block.remove(self.folder(key))
            self._files.fit()

    def _make(self, key: Key) -> ControlBlock:
        return self._files.make(lambda: ControlBlock(self.folder(key), self._clock))

    def refresh(self) -> None:
        """Writes the rules again, because the costs may have changed: contexts must not be free for later
        allocations."""
        self._publish()

    def _publish(self) -> None:
        """Writes the rules of all slices, first those that lose GPU time, so that no time is given to two slices at
        once."""
        planned = rules.plan(self._slices.values(), self._policy, self._overrides)
        context_bytes, pool_chunk_bytes = self._costs()
        for key in sorted(planned, key=lambda k: _grows(self._control_blocks[k].rules, planned[k])):
            self._control_blocks[key].write(
                planned[key], context_bytes=context_bytes, pool_chunk_bytes=pool_chunk_bytes
            )


def _grows(before: control_block.Rules | None, after: control_block.Rules) -> bool:
    """Whether the slice gets more GPU time than it had."""
    return sum(gpu.window_ns or gpu.compute_milli for gpu in after.gpus) > (
        0 if before is None else sum(gpu.window_ns or gpu.compute_milli for gpu in before.gpus)
    )
