"""The pages of all containers on this node, kept as the rules want them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from services.node_agent.strategies import page, rules
from services.node_agent.strategies.page import Page, Reading
from services.node_agent.strategies.rules import Policy, Wish
from services.node_agent.strategies.slices import Key, Slice


class Board:
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
        self._pages: dict[Key, Page] = {}
        self._wishes: dict[Key, Wish] = {}

    @property
    def slices(self) -> tuple[Slice, ...]:
        return tuple(self._slices.values())

    def put(self, slice_: Slice, wish: Wish | None = None) -> None:
        """Its page stands, and all others know of it. Raises OSError or ValueError: then nothing has changed. `wish`: what it
        begins with; None: what was wished last."""
        key = slice_.key
        before, wished = self._slices.get(key), self._wishes.get(key)
        self._slices[key] = slice_
        if wish is not None:
            self._wishes[key] = wish
        try:
            if key not in self._pages:
                self._pages[key] = Page(self.folder(key), self._clock)
            self._say()
        except (OSError, ValueError):
            if before is None:
                self._take_away(key)
            else:
                self._slices[key] = before
                self._wishes[key] = wished or rules.NOTHING
            self._say()
            raise

    def take_up(self, slices: Iterable[Slice], wishes: Mapping[Key, Wish] = {}) -> list[tuple[Slice, Exception]]:
        """The slices of an earlier agent, all at once: told one by one, some would hear for a moment that they are alone. Those
        that cannot be taken up, and why; they go on by what they were told last."""
        failed: list[tuple[Slice, Exception]] = []
        for slice_ in slices:
            try:
                rules.check(slice_)
                self._pages[slice_.key] = Page(self.folder(slice_.key), self._clock)
            except (OSError, ValueError) as error:
                failed.append((slice_, error))
            else:
                self._slices[slice_.key] = slice_
                self._wishes[slice_.key] = wishes.get(slice_.key, rules.NOTHING)
        self._say()
        return failed

    def wish(self, key: Key, wish: Wish) -> None:
        """Raises KeyError where there is no such slice, OSError or ValueError where it cannot be said: then nothing has changed.
        It lives as long as this agent: its successor has to be told again."""
        before = self._wishes.get(key, rules.NOTHING)
        if self._slices[key] and before != wish:
            self._wishes[key] = wish
            try:
                self._say()
            except (OSError, ValueError):
                self._wishes[key] = before
                self._say()
                raise

    def wished(self, key: Key) -> Wish:
        return self._wishes.get(key, rules.NOTHING)

    def drop(self, key: Key) -> None:
        """Its container is gone. Raises OSError where its files cannot be removed."""
        self._take_away(key)
        self._say()

    def keep_only(self, keys: Iterable[Key]) -> None:
        """Removes all pages but these, those of an earlier agent too. Raises OSError."""
        kept = set(keys)
        for key in self._slices.keys() - kept:
            self.drop(key)
        names = {page.folder_name(key) for key in kept}
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name not in names:
                    page.remove(path)

    def read(self, key: Key) -> Reading | None:
        """What the container says of itself; None where it has no page."""
        found = self._pages.get(key)
        return None if found is None else found.read()

    def busy(self, key: Key) -> bool:
        """Whether its work goes on, by its own word. False where it has no page."""
        found = self._pages.get(key)
        return found is not None and found.busy_until_ns() > self._clock()

    def beat(self) -> None:
        for found in self._pages.values():
            found.beat()

    def folder(self, key: Key) -> Path:
        return self._folder / page.folder_name(key)

    def close(self) -> None:
        """The files stay: the containers go on by what was said last."""
        for found in self._pages.values():
            found.close()
        self._pages.clear()
        self._slices.clear()

    def _take_away(self, key: Key) -> None:
        self._slices.pop(key, None)
        self._wishes.pop(key, None)
        found = self._pages.pop(key, None)
        if found is not None:
            found.close()
            page.remove(self.folder(key))

    def say(self) -> None:
        """Costs may have changed: they are not free for those that come later."""
        self._say()

    def _say(self) -> None:
        """Those that are taken from hear of it first, so that nothing is given twice meanwhile."""
        planned = rules.plan(self._slices.values(), self._policy, self._wishes)
        context_bytes, pool_chunk_bytes = self._costs()
        for key in sorted(planned, key=lambda k: _grows(self._pages[k].rules, planned[k])):
            self._pages[key].order(planned[key], context_bytes=context_bytes, pool_chunk_bytes=pool_chunk_bytes)


def _grows(before: page.Rules | None, after: page.Rules) -> bool:
    """Whether it gets more time than it had."""
    return sum(gpu.window_ns or gpu.compute_milli for gpu in after.gpus) > (
        0 if before is None else sum(gpu.window_ns or gpu.compute_milli for gpu in before.gpus)
    )
