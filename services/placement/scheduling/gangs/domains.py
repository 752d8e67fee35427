"""Where a gang would fit: how many pods of a shape each node has room for at most, and the topology domains in that
light.

Counting is cheap and never too low: what it rules out cannot be. What it lets pass is then tried on the book.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from services.placement.engine.engine import Engine
from services.placement.engine.shape import INFEASIBLE
from shared.book.arrays import NOT_MIG, Arrays, Bools, Ints
from shared.book.book import Book
from shared.book.gangs import GangState
from shared.book.states import PodState
from shared.book.subgroups import covers
from shared.model.request import GpuAsk
from shared.model.subgroup import Subgroup
from shared.model.units import WHOLE_GPU_MILLI

_PLENTY = 1 << 20
"""Room for this many pods counts as room for all."""
_INSTANCES_MOST = 8
"""A GPU in MIG mode has eight memory slices; an instance may have less than its name says, so amounts are no guide."""
_SINGLE_TRIES = 4
"""How many attempts in one domain a preferred level is worth before several domains are used."""


class Shape(msgspec.Struct, frozen=True):
    """Members of one shape: one of them for all, how many there are, and for how many each row has room at most."""

    sample: PodState
    count: int
    room: Ints


class Wanted(msgspec.Struct, frozen=True):
    """Places for `need` of some members, which have these shapes. Not empty."""

    shapes: list[Shape]
    need: int


def shapes_of(members: Sequence[PodState], engine: Engine) -> list[Shape]:
    """The members by shape, in the order of their first ones."""
    by_key: dict[bytes, list[PodState]] = {}
    for state in members:
        by_key.setdefault(engine.key_of(state), []).append(state)
    return [Shape(states[0], len(states), room_for(states[0], engine)) for states in by_key.values()]


def may_fit(
    gang: GangState, members: Sequence[PodState], engine: Engine, known: dict[object, bool] | None = None
) -> bool:
    """Whether there may be room for members that are placed together. `known`: of the same book, what it said of gangs
    by `equal_gangs`."""
    equal = None if known is None else equal_gangs(gang, members, engine)
    if known is None or equal is None:
        return _may_fit(gang, members, engine)
    if equal not in known:
        known[equal] = _may_fit(gang, members, engine)
    return known[equal]


def _may_fit(gang: GangState, members: Sequence[PodState], engine: Engine) -> bool:
    by_leaf = members_by_leaf(gang, members)
    there = {leaf: len(states) for leaf, states in by_leaf.items()}
    return any(
        all(holds([Wanted(shapes_of(by_leaf[leaf], engine), need)]) for leaf, need in step.items())
        for step in gang.steps(there)
        if covers(there, step)
    )


def equal_gangs(gang: GangState, members: Sequence[PodState], engine: Engine) -> tuple[int, tuple[bytes, ...]] | None:
    """Equal for gangs for which `may_fit` says the same as long as the book does not change: those without subgroups of
    which nothing is placed yet. None for others."""
    if gang.subgroups or gang.has:
        return None
    return gang.minimum, tuple(sorted(map(engine.key_of, members)))


def members_by_leaf(gang: GangState, members: Sequence[PodState]) -> dict[str, list[PodState]]:
    """The members of each leaf of the gang's subgroups, in their order."""
    by_leaf: dict[str, list[PodState]] = {}
    for state in members:
        by_leaf.setdefault(gang.leaf(state.uid), []).append(state)
    return by_leaf


def room_for(state: PodState, engine: Engine) -> Ints:
    """How many such pods fit on each row at most."""
    total = engine.row(state).refresh()
    rows = np.flatnonzero(total != INFEASIBLE)
    room: Ints = np.zeros(total.size, np.int64)
    if rows.size:
        room[rows] = _room(state, engine.book.arrays, rows)
    return room


def _room(state: PodState, arrays: Arrays, rows: Ints) -> Ints:
    demand = state.demand
    room = np.minimum(arrays.pods_free[rows], _PLENTY)
    for free, amount in (
        (arrays.cpu_free, demand.cpu_milli),
        (arrays.memory_free, demand.memory_bytes),
        (arrays.ephemeral_free, demand.ephemeral_bytes),
    ):
        if amount:
            room = np.minimum(room, free[rows] // amount)
    if state.request is not None:
        for ask in state.request.asks.values():
            room = np.minimum(room, _on_gpus(ask, arrays, rows).sum(axis=1) // ask.count)
    return np.maximum(room, 0)


def _on_gpus(ask: GpuAsk, arrays: Arrays, rows: Ints) -> Ints:
    """By row and GPU: how many containers with this ask the GPU takes at most."""
    if ask.whole:
        return arrays.gpu_whole[rows].astype(np.int64)
    times = np.full(arrays.gpu_free_mib[rows].shape, _PLENTY, np.int64)
    needed = (
        arrays.gpu_total_mib[rows] * ask.memory_milli // WHOLE_GPU_MILLI
        if ask.memory_milli
        else np.full_like(times, ask.memory_mib)
    )
    np.minimum(times, arrays.gpu_free_mib[rows] // np.maximum(needed, 1), out=times, where=needed > 0)
    if ask.compute_milli:
        times = np.minimum(times, arrays.gpu_free_milli[rows] // ask.compute_milli)
    if arrays.any_mig:
        times = np.where(arrays.gpu_mig_geometry[rows] == NOT_MIG, times, _INSTANCES_MOST)
    return np.where(arrays.gpu_total_mib[rows] > 0, np.maximum(times, 0), 0)


def holds(wanted: Sequence[Wanted], only: Bools | None = None) -> bool:
    """Whether all that is wanted may fit on these rows; each part of it is looked at by itself."""
    return all(
        sum(min(s.count, int((s.room if only is None else s.room[only]).sum())) for s in one.shapes) >= one.need
        for one in wanted
    )


class Level:
    """The domains of one node label: nodes with the same value of it. Nodes without the label are in none."""

    def __init__(self, label: str, book: Book) -> None:
        self.label = label
        self.values: list[str] = []
        numbers: dict[str, int] = {}
        rows = book.arrays.rows
        self.of_row: Ints = np.full(rows, -1, np.int64)
        for node in book.nodes.values():
            value = node.object.metadata.labels.get(label) if node.object is not None else None
            if value is not None:
                number = numbers.setdefault(value, len(numbers))
                if number == len(self.values):
                    self.values.append(value)
                self.of_row[node.row] = number

    def name(self, domains: Sequence[int]) -> str:
        """For people: topology.kubernetes.io/rack=r1|r2."""
        return f"{self.label}={'|'.join(self.values[d] for d in domains)}"

    def mask(self, domains: Sequence[int]) -> Bools:
        return np.isin(self.of_row, domains)

    def rooms(self, shapes: Sequence[Shape], within: Bools | None = None) -> list[Ints]:
        """By shape: for how many of its pods each domain has room."""
        rows = self.of_row >= 0 if within is None else (self.of_row >= 0) & within
        return [
            np.bincount(self.of_row[rows], weights=s.room[rows], minlength=len(self.values)).astype(np.int64)
            for s in shapes
        ]

    def fitting(self, wanted: Sequence[Wanted], within: Bools | None = None) -> list[int]:
        """Domains that may hold what is wanted, the one with the least room first: so large domains stay whole."""
        if not self.values:
            return []
        fits = np.ones(len(self.values), bool)
        first = self.rooms(wanted[0].shapes, within)[0]
        for one in wanted:
            take = sum(
                (np.minimum(room, s.count) for room, s in zip(self.rooms(one.shapes, within), one.shapes, strict=True)),
                np.zeros(len(self.values), np.int64),
            )
            fits &= take >= one.need
        return sorted(np.flatnonzero(fits).tolist(), key=lambda d: (int(first[d]), self.values[d]))

    def fewest(self, wanted: Sequence[Wanted], within: Bools | None = None) -> list[int]:
        """The roomiest domains, as few of them as together may hold what is wanted; all where none are enough."""
        rooms = [self.rooms(one.shapes, within) for one in wanted]
        chosen: list[int] = []
        so_far = [[0] * len(one.shapes) for one in wanted]
        for domain in sorted(range(len(self.values)), key=lambda d: (-int(rooms[0][0][d]), self.values[d])):
            chosen.append(domain)
            so_far = [
                [had + int(room[domain]) for had, room in zip(has, room_of, strict=True)]
                for has, room_of in zip(so_far, rooms, strict=True)
            ]
            if all(
                sum(min(had, s.count) for had, s in zip(has, one.shapes, strict=True)) >= one.need
                for has, one in zip(so_far, wanted, strict=True)
            ):
                break
        return chosen

    def in_use(self, rows: Sequence[int]) -> list[int]:
        """The domains of these rows."""
        return sorted({int(self.of_row[row]) for row in rows} - {-1})


class Levels(dict[str, Level]):
    """Levels by their label, each looked up once: for one attempt, in which no node changes."""

    def __init__(self, book: Book) -> None:
        super().__init__()
        self._book = book

    def __missing__(self, label: str) -> Level:
        return self.setdefault(label, Level(label, self._book))


class Area(msgspec.Struct, frozen=True):
    """Rows on which a gang is tried. `name` for people, such as topology.kubernetes.io/rack=r1; empty: all nodes."""

    rows: Bools | None = None
    name: str = ""


EVERYWHERE = Area()


def areas(
    subgroup: Subgroup, wanted: Sequence[Wanted], taken: Sequence[int], levels: Levels, outer: Area = EVERYWHERE
) -> Iterator[Area]:
    """Where the wanted members of a subgroup may fit within the outer area, best first.

    `taken`: the rows on which it has members. If it has some, it stays in their required domain.
    """
    for wide in _required(subgroup.required, wanted, levels, taken, outer):
        if holds(wanted, wide.rows):
            if subgroup.preferred:
                yield from _preferred(levels[subgroup.preferred], wanted, taken, wide)
            yield wide


def rows_of(gang: GangState, subgroup: Subgroup, book: Book) -> list[int]:
    """The nodes on which members of the subgroup have places."""
    leaves = {leaf.name for leaf in subgroup.leaves()}
    placed = {uid: book.pods[uid].charged for uid in gang.placed} | gang.kept
    nodes = [node for uid, node in placed.items() if not subgroup.name or gang.leaf(uid) in leaves]
    return [book.nodes[node].row for node in nodes if node in book.nodes]


def _required(
    label: str, wanted: Sequence[Wanted], levels: Levels, taken: Sequence[int], outer: Area
) -> Iterator[Area]:
    if not label:
        yield outer
        return
    level = levels[label]
    used = level.in_use(taken)
    for domains in [used] if used else [[d] for d in level.fitting(wanted, outer.rows)]:
        yield _area(level, domains, outer)


def _preferred(level: Level, wanted: Sequence[Wanted], taken: Sequence[int], wide: Area) -> Iterator[Area]:
    """As few domains as may do: those in use, one alone, the roomiest few."""
    tries = [
        level.in_use(taken),
        *([d] for d in level.fitting(wanted, wide.rows)[:_SINGLE_TRIES]),
        level.fewest(wanted, wide.rows),
    ]
    for domains in tries:
        area = _area(level, domains, wide)
        if holds(wanted, area.rows):
            yield area


def _area(level: Level, domains: Sequence[int], outer: Area) -> Area:
    rows = level.mask(domains)
    return Area(rows if outer.rows is None else rows & outer.rows, level.name(domains))


def nearest(gang: GangState, shapes: Sequence[Shape], book: Book) -> tuple[str, int]:
    """The required domain with room for most members, and for how many of them; all nodes where none is required. Of a
    gang that has begun, the domain of its pods."""
    if not gang.required:
        return "", sum(min(s.count, int(s.room.sum())) for s in shapes)
    level = Level(gang.required, book)
    best, most = -1, -1
    for domain in level.in_use(rows_of(gang, gang.tree, book)) or range(len(level.values)):
        rows = level.of_row == domain
        room = sum(min(s.count, int(s.room[rows].sum())) for s in shapes)
        if room > most:
            best, most = domain, room
    return (level.name([best]), most) if best >= 0 else ("", 0)
