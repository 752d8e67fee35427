"""Evictions that are asked for again until the pods are gone: a disruption budget may deny them for a while. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.preemptor import messages as m
from shared.book.states import PodState
from shared.contracts.commands import Evict

AGAIN_S = 30.0


class RepeatedEvictions:
    def __init__(self, what: str) -> None:
        """`what`: what these evictions are for, in front of the subject's name: "driver upgrade of"."""
        self._what = what
        self._asked: dict[str, float] = {}
        """By subject, when its pods were evicted last."""

    def due(
        self, subjects: Iterable[str], evictions: Callable[[str], tuple[Evict, ...]], now: float
    ) -> list[m.Command]:
        """The evictions that are due now. `subjects`: all that have pods to evict at present, by name."""
        wanted = sorted(subjects)
        self._asked = {name: self._asked[name] for name in wanted if name in self._asked}
        out: list[m.Command] = []
        for name in wanted:
            if now - self._asked.get(name, now - AGAIN_S) < AGAIN_S:
                continue
            self._asked[name] = now
            orders = evictions(name)
            if orders:
                out.append(m.Execute(f"{self._what} {name}", orders))
        return out


def evictions_of(states: Iterable[PodState], reason: str) -> tuple[Evict, ...]:
    """Of those pods that are bound and not being deleted, by uid."""
    return tuple(
        Evict(uid=state.uid, namespace=state.pod.metadata.namespace, name=state.pod.metadata.name, reason=reason)
        for state in sorted(states, key=lambda state: state.uid)
        if state.pod.spec.node_name and state.pod.metadata.deletion_timestamp is None
    )
