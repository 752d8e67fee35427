"""The pages of all containers on this node, kept as the rules want them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from services.node_agent.strategies import control_block, rules
from services.node_agent.strategies.control_block import ControlBlock, Reading
from services.node_agent.strategies.rules import Override, Policy
from services.node_agent.strategies.slices import Key, Slice


class SliceRegistry:
    def __init__(
        self,
        folder: Path,
        policy: Policy,
        clock: Callable[[], int],
        costs: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        """`folder` must be one file system with nothing else of use in it: containers can fill it. `clock`: nanoseconds of
        CLOCK_MONOTONIC. `costs`: what a process's context takes of a GPU here, and a memory pool at once, in bytes; 0: unknown."""
        self._folder, self._policy, self._clock, self._costs = folder, policy, clock, costs
        self._slices: dict[Key, Slice] = {}
        self._control_blocks: dict[Key, ControlBlock] = {}
        self._overrides: dict[Key, Override] = {}

    @property
    def slices(self) -> tuple[Slice, ...]:
        return tuple(self._slices.values())

    def put(self, slice_: Slice, override: Override | None = None) -> None:
        """Its page stands, and all others know of it. Raises OSError or ValueError: then nothing has changed. `override`: what it
        begins with; None: what was old_override last."""
        key = slice_.key
        before, old_override = self._slices.get(key), self._overrides.get(key)
        self._slices[key] = slice_
        if override is not None:
            self._overrides[key] = override
        try:
            if key not in self._control_blocks:
                self._control_blocks[key] = ControlBlock(self.folder(key), self._clock)
            self._publish()
        except (OSError, ValueError):
            if before is None:
                self._forget(key)
            else:
                self._slices[key] = before
                self._overrides[key] = old_override or rules.NO_OVERRIDE
            self._publish()
            raise

    def adopt(self, slices: Iterable[Slice], overrides: Mapping[Key, Override] = {}) -> list[tuple[Slice, Exception]]:
        """The slices of an earlier agent, all at once: told one by one, some would hear for a moment that they are alone. Those
        that cannot be taken up, and why; they go on by what they were told last."""
        failed: list[tuple[Slice, Exception]] = []
        for slice_ in slices:
            try:
                rules.check(slice_)
                self._control_blocks[slice_.key] = ControlBlock(self.folder(slice_.key), self._clock)
            except (OSError, ValueError) as error:
                failed.append((slice_, error))
            else:
                self._slices[slice_.key] = slice_
                self._overrides[slice_.key] = overrides.get(slice_.key, rules.NO_OVERRIDE)
        self._publish()
        return failed

    def set_override(self, key: Key, override: Override) -> None:
        """Raises KeyError where there is no such slice, OSError or ValueError where it cannot be said: then nothing has changed.
        It lives as long as this agent: its successor has to be told again."""
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

    def drop(self, key: Key) -> None:
        """Its container is gone. Raises OSError where its files cannot be removed."""
        self._forget(key)
        self._publish()

    def keep_only(self, keys: Iterable[Key]) -> None:
        """Removes all pages but these, those of an earlier agent too. Raises OSError."""
        kept = set(keys)
        for key in self._slices.keys() - kept:
            self.drop(key)
        names = {control_block.folder_name(key) for key in kept}
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name not in names:
                    control_block.remove(path)

    def read(self, key: Key) -> Reading | None:
        """What the container says of itself; None where it has no page."""
        found = self._control_blocks.get(key)
        return None if found is None else found.read()

    def is_busy(self, key: Key) -> bool:
        """Whether its work goes on, by its own word. False where it has no page."""
        found = self._control_blocks.get(key)
        return found is not None and found.busy_until_ns() > self._clock()

    def heartbeat(self) -> None:
        for found in self._control_blocks.values():
            found.heartbeat()

    def folder(self, key: Key) -> Path:
        return self._folder / control_block.folder_name(key)

    def close(self) -> None:
        """The files stay: the containers go on by what was said last."""
        for found in self._control_blocks.values():
            found.close()
        self._control_blocks.clear()
        self._slices.clear()

    def _forget(self, key: Key) -> None:
        self._slices.pop(key, None)
        self._overrides.pop(key, None)
        found = self._control_blocks.pop(key, None)
        if found is not None:
            found.close()
            control_block.remove(self.folder(key))

    def refresh(self) -> None:
        """Costs may have changed: they are not free for those that come later."""
        self._publish()

    def _publish(self) -> None:
        """Those that are taken from hear of it first, so that nothing is given twice meanwhile."""
        planned = rules.plan(self._slices.values(), self._policy, self._overrides)
        context_bytes, pool_chunk_bytes = self._costs()
        for key in sorted(planned, key=lambda k: _grows(self._control_blocks[k].rules, planned[k])):
            self._control_blocks[key].write(
                planned[key], context_bytes=context_bytes, pool_chunk_bytes=pool_chunk_bytes
            )


def _grows(before: control_block.Rules | None, after: control_block.Rules) -> bool:
    """Whether it gets more time than it had."""
    return sum(gpu.window_ns or gpu.compute_milli for gpu in after.gpus) > (
        0 if before is None else sum(gpu.window_ns or gpu.compute_milli for gpu in before.gpus)
    )
