"""Linearizability of grants, by a checker that knows no book: what the API server stored, and what nodes ran.

It reads two histories and nothing else: the pods as the API server stored them, one version after the other, and each
node's journal of what its containers take of which GPU. The grant is read as JSON, from the annotation. It imports
nothing of the services, so a mistake that their code and the other properties have in common does not hide here.

While the world runs (`stored`, `ran`):
- C1 What runs on a GPU never takes more than the GPU has.
- C2 What runs was bound before, with this grant, this node and this GPU.
- C3 It takes no more than the largest amounts that its pod's annotation ever had.
- C4 No container runs by two grants at once, on any nodes, and no grant is on two pods.

When the world has ended (`linearize`), with hindsight:
- C5 A grant takes effect at its Binding, and its effect ends with the last use of it. In between it counts also while
  its containers do not run, with what they start with next. These intervals never exceed a GPU: each use of a GPU is
  preceded by the end of those that it does not fit beside.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

GRANT, SUSPENDED = "kerf.dev/grant", "kerf.dev/suspended"
Key = tuple[str, str]
"""Pod's uid and container."""
Gpu = tuple[str, str]
"""Node and UUID."""
Amounts = tuple[int, int]
"""MiB and milli."""
NOTHING: Amounts = (0, 0)


class Use(NamedTuple):
    """What one container, or the server of one, has on a node. A client of another node's GPU takes nothing."""

    grant_id: str
    takes: Mapping[str, Amounts]
    """By UUID."""


class Ran(NamedTuple):
    """From this moment on a container takes this; None: it does not run any more."""

    number: int
    node: str
    key: Key
    use: Use | None


class Stored(NamedTuple):
    """From this moment on a bound pod has this grant."""

    number: int
    uid: str
    grant_id: str
    gives: Mapping[tuple[str, Gpu], Amounts]
    """By container and GPU."""
    suspended: bool


class Fault(NamedTuple):
    rule: str
    text: str


class GrantChecker:
    """`capacity` of each GPU. What does not hold is returned, each as it is found."""

    def __init__(self, capacity: Amounts) -> None:
        self._capacity = capacity
        self._number = 0
        """Both histories are in one order."""
        self._ran: list[Ran] = []
        self._stored: dict[str, list[Stored]] = defaultdict(list)
        """By grant."""
        self._places: dict[str, set[str]] = defaultdict(set)
        """By grant: the nodes to which its pod was bound, and those of its GPUs."""
        self._most: dict[tuple[str, str, Gpu], Amounts] = {}
        """By grant, container and GPU."""
        self._running: dict[str, dict[Key, Use]] = defaultdict(dict)
        """By node."""

    @property
    def uses(self) -> int:
        """How many changes of what runs were seen."""
        return len(self._ran)

    # --- the API server's history ---------------------------------------------------------------------------------

    def stored(self, uid: str, node: str, annotations: Mapping[str, str]) -> Iterator[Fault]:
        """A version of a pod; `node` is empty while it is not bound."""
        text = annotations.get(GRANT, "")
        if not node or not text:
            return
        grant_id, gives = _read(text)
        self._number += 1
        known = self._stored[grant_id]
        if known and known[-1].uid != uid:
            yield Fault("C4", f"grant {grant_id} is on the pods {known[-1].uid} and {uid}")
        seen = Stored(self._number, uid, grant_id, gives, bool(annotations.get(SUSPENDED)))
        if not known or known[-1][1:] != seen[1:]:
            known.append(seen)
        self._places[grant_id] |= {node, *(gpu[0] for _, gpu in gives)}
        for (container, gpu), amounts in gives.items():
            at = (grant_id, container, gpu)
            self._most[at] = _larger(self._most.get(at, NOTHING), amounts)

    # --- the journals of nodes ------------------------------------------------------------------------------------

    def ran(self, node: str, now: Mapping[Key, Use]) -> Iterator[Fault]:
        """All that runs on a node from this moment on."""
        before = self._running[node]
        if before == now:
            return
        self._number += 1
        self._running[node] = dict(now)
        self._ran += [Ran(self._number, node, key, None) for key in before.keys() - now.keys()]
        for key, use in now.items():
            if before.get(key) != use:
                self._ran.append(Ran(self._number, node, key, use))
                yield from self._may_run(node, key, use)
        yield from self._fits(node)

    def _may_run(self, node: str, key: Key, use: Use) -> Iterator[Fault]:
        uid, container = key
        says = f"{container} of {uid} runs on {node} by {use.grant_id}"
        known = self._stored.get(use.grant_id, [])
        if not known or known[-1].uid != uid or node not in self._places[use.grant_id]:
            yield Fault("C2", f"{says}, with which it was never bound there")
            return
        for uuid, amounts in use.takes.items():
            given = self._most.get((use.grant_id, container, (node, uuid)))
            if given is None:
                yield Fault("C2", f"{says} on {uuid}, which that grant does not name")
            elif amounts[0] > given[0] or amounts[1] > given[1]:
                yield Fault("C3", f"{says} with {amounts} of {uuid}, and was granted {given} at most")
        for other, running in self._running.items():
            also = running.get(key)
            if also is not None and also.grant_id != use.grant_id:
                yield Fault("C4", f"{says}, and on {other} by {also.grant_id}")

    def _fits(self, node: str) -> Iterator[Fault]:
        taken: dict[str, Amounts] = {}
        for use in self._running[node].values():
            for uuid, amounts in use.takes.items():
                taken[uuid] = _sum(taken.get(uuid, NOTHING), amounts)
        for uuid, amounts in taken.items():
            if self._exceeds(amounts):
                by = sorted(f"{key[0]} by {use.grant_id}" for key, use in self._running[node].items() if use.takes)
                yield Fault("C1", f"{amounts} of {uuid} on {node} are in use: {'; '.join(by)}")

    def _exceeds(self, amounts: Amounts) -> bool:
        return amounts[0] > self._capacity[0] or amounts[1] > self._capacity[1]

    # --- hindsight ------------------------------------------------------------------------------------------------

    def linearize(self) -> Iterator[Fault]:
        """C5."""
        by_use: dict[tuple[str, str, Gpu], list[tuple[int, Amounts | None]]] = defaultdict(list)
        """Of a grant, container and GPU: what it takes from a moment on; None while it does not run."""
        had: dict[tuple[str, Key], Use] = {}
        for number, node, key, use in self._ran:
            before = had.pop((node, key), None)
            for uuid in before.takes if before is not None else ():
                by_use[before.grant_id, key[1], (node, uuid)].append((number, None))  # type: ignore[union-attr]
            if use is not None:
                had[node, key] = use
                for uuid, amounts in use.takes.items():
                    by_use[use.grant_id, key[1], (node, uuid)].append((number, amounts))
        changes: dict[Gpu, list[tuple[int, str, Amounts]]] = defaultdict(list)
        for (grant_id, container, gpu), taken in by_use.items():
            for number, amounts in self._held(self._stored.get(grant_id, []), container, gpu, taken):
                changes[gpu].append((number, f"{grant_id}/{container}", amounts))
        for gpu, of_gpu in changes.items():
            yield from self._never_exceeds(gpu, of_gpu)

    @staticmethod
    def _held(
        stored: list[Stored], container: str, gpu: Gpu, taken: list[tuple[int, Amounts | None]]
    ) -> Iterator[tuple[int, Amounts]]:
        """What counts from a moment on. While nothing runs: what is granted then, at most what it starts with next,
        and nothing while the pod is suspended or when it never starts again."""
        moments = sorted({version.number for version in stored} | {number for number, _ in taken})
        use: Amounts | None = None
        granted, at_version, at_use = NOTHING, 0, 0
        for moment in moments:
            while at_version < len(stored) and stored[at_version].number <= moment:
                version = stored[at_version]
                granted = NOTHING if version.suspended else version.gives.get((container, gpu), NOTHING)
                at_version += 1
            while at_use < len(taken) and taken[at_use][0] <= moment:
                use = taken[at_use][1]
                at_use += 1
            following = next((amounts for _, amounts in taken[at_use:] if amounts is not None), NOTHING)
            yield moment, use if use is not None else _smaller(granted, following)

    def _never_exceeds(self, gpu: Gpu, changes: list[tuple[int, str, Amounts]]) -> Iterator[Fault]:
        holds: dict[str, Amounts] = {}
        moment = 0
        for number, by, amounts in sorted(changes):
            if number != moment and self._exceeds(_total(holds.values())):
                held = "; ".join(f"{name} {has}" for name, has in sorted(holds.items()) if has != NOTHING)
                yield Fault("C5", f"{gpu} is granted to {held} at moment {moment}, and each of them runs by it later")
                return
            moment = number
            holds[by] = amounts
        # After the last change nothing starts any more: C1 has seen what runs.


def _total(all_of: Iterable[Amounts]) -> Amounts:
    mib = milli = 0
    for amounts in all_of:
        mib, milli = mib + amounts[0], milli + amounts[1]
    return mib, milli


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return one[0] + other[0], one[1] + other[1]


def _larger(one: Amounts, other: Amounts) -> Amounts:
    return max(one[0], other[0]), max(one[1], other[1])


def _smaller(one: Amounts, other: Amounts) -> Amounts:
    return min(one[0], other[0]), min(one[1], other[1])


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> tuple[str, dict[tuple[str, Gpu], Amounts]]:
    """(grant's id, what it gives), from the annotation's JSON."""
    grant: dict[str, Any] = json.loads(text)
    gives: dict[tuple[str, Gpu], Amounts] = {}
    for name, container in grant.get("containers", {}).items():
        for share in container["gpus"]:
            at = (name, (share["node"], share["uuid"]))
            gives[at] = _sum(gives.get(at, NOTHING), (share["memory_mib"], share["compute_milli"]))
    return grant["grant_id"], gives
