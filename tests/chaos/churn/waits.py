"""How long pods wait although they fit, and how long none is bound meanwhile. Pure.

*Fits*: at one look, the pod is pending, is no member of a gang, and one node has as many GPUs as it requests that each
have its memory and compute free. Free is what the grants of bound pods and the containers that still run (the nodes'
own journals) leave, on nodes whose agent's process ran at that look. Members of gangs are left out, because whether one
fits depends on all.

*Stuck*: the pod fitted at every look of more than `STUCK_S` in a row. Kerf may have parts missing in that time: what a
fault stopped stays stopped until another fault restores it, or a kubelet would.

*Stuck in service*: stuck, counting only the time between looks at both of which Kerf was able to work: one placement
and one watcher ran, had connections that let everything pass, and were not refused. The time that they need to start
and to take over counts.

*Gap*: the longest time in which at every look some pod fitted, and no Binding was seen. It begins with the look that
showed the last Binding, or with the first one at which a pod fitted; it is exact to the time between two looks. A time
in which the API server does not answer is part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tests.chaos.audit import WHOLE_MILLI, Ask, Gpus

STUCK_S = 60.0


def fitting(
    waiting: Mapping[str, Ask], gpus: Gpus, used: Mapping[tuple[str, str], tuple[int, int]], nodes: Collection[str]
) -> set[str]:
    """The names of pods that fit. `used`: (MiB, milli) by (node, GPU). `nodes`: those whose agent runs."""
    rooms: dict[str, list[tuple[int, int, int]]] = {}
    for (node, uuid), size in gpus.items():
        if node in nodes:
            mib, milli = used.get((node, uuid), (0, 0))
            rooms.setdefault(node, []).append((size, size - mib, WHOLE_MILLI - milli))
    known: dict[Ask, bool] = {}
    for ask in waiting.values():
        if ask not in known:
            known[ask] = any(sum(_holds(room, ask) for room in inside) >= ask.count for inside in rooms.values())
    return {name for name, ask in waiting.items() if known[ask]}


def _holds(room: tuple[int, int, int], ask: Ask) -> bool:
    size, free_mib, free_milli = room
    return free_mib >= ask.memory_on(size) and free_milli >= ask.milli


class Waits:
    """Follows one look after the other. Times are seconds of any steady clock."""

    def __init__(self) -> None:
        self.longest_gap_s = 0.0
        self.stuck: dict[str, float] = {}
        """By the pod's name: for how long it waited at most, of those that waited longer than `STUCK_S`."""
        self.stuck_in_service: dict[str, float] = {}
        self._since: dict[str, tuple[float, float]] = {}
        """By name of a pod that fits: the time, and `_able_s` then."""
        self._able_s = 0.0
        """In which Kerf was able to work, since the first look."""
        self._last: tuple[float, bool] | None = None
        self._bound: set[str] = set()
        self._gap_since: float | None = None

    def look(self, now: float, bound: Collection[str], fits: Collection[str], *, able: bool) -> None:
        """`bound`: the uids of bound pods. `fits`: the names of pending pods that fit. `able`: to work."""
        if able and self._last is not None and self._last[1]:
            self._able_s += now - self._last[0]
        self._last = now, able
        self._since = {name: self._since.get(name, (now, self._able_s)) for name in fits}
        for name, (since, able_s) in self._since.items():
            _note(self.stuck, name, now - since)
            _note(self.stuck_in_service, name, self._able_s - able_s)
        seen = bool(set(bound) - self._bound)
        self._bound = set(bound)
        if self._gap_since is not None and (fits or seen):
            self.longest_gap_s = max(self.longest_gap_s, now - self._gap_since)
        if not fits:
            self._gap_since = None
        elif seen or self._gap_since is None:
            self._gap_since = now


def _note(stuck: dict[str, float], name: str, waited_s: float) -> None:
    if waited_s > STUCK_S:
        stuck[name] = max(stuck.get(name, 0.0), waited_s)
