"""The earliest time at which a waiting pod could start, by the ends that are known.

Ends are replayed on forks, node by node: the pod fits when enough of that node's pods have ended. Whether other pods or
objects are in its way is tried where and when there would be room first; if so no time is promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from services.placement.engine.engine import Engine
from services.placement.engine.shape import INFEASIBLE
from services.placement.explain.migrations import opens
from services.placement.explain.steps import Steps
from services.placement.scheduling.backfill.ends import End, end_of
from services.placement.scheduling.trial import Trial
from shared.book.arrays import Bools
from shared.book.book import Book
from shared.book.fork import Fork
from shared.book.states import NodeState, PodState
from shared.contracts.explain import KnownEnd, WhenExplanation
from shared.model.timestamps import seconds_text
from shared.scheduling.assignment import assign

_NODES_A_STEP = 16
_SHOWN_MOST = 20


def when_kept(
    state: PodState, engine: Engine, now: float, give_way: Callable[[Fork], None], *, within: Bools | None = None
) -> Steps[WhenExplanation]:
    """For a pod for which others are preempted. `give_way` frees the places that are reserved for it and its gang. The
    book must not change meanwhile (`undisturbed`)."""
    trial = Trial(engine)
    give_way(trial.book)
    told = yield from when(state, trial.engine, now, within=within)
    return msgspec.structs.replace(
        told,
        assumptions=(
            *told.assumptions[:-1],
            "nodes stay as they are, and no further pods are preempted",
        ),
    )


def when_beside(
    state: PodState,
    engine: Engine,
    now: float,
    reserve: Callable[[Book], None],
    *,
    ahead: int = 0,
    within: Bools | None = None,
) -> Steps[WhenExplanation]:
    """For a pod that is kept off capacity that is reserved for others, which `reserve` books. The book must not change
    meanwhile (`undisturbed`)."""
    trial = Trial(engine)
    reserve(trial.book)
    told = yield from when(state, trial.engine, now, ahead=ahead, within=within)
    return msgspec.structs.replace(
        told, assumptions=(*told.assumptions, "capacity that is reserved now stays reserved")
    )


def when(
    state: PodState, engine: Engine, now: float, *, ahead: int = 0, within: Bools | None = None
) -> Steps[WhenExplanation]:
    """`now`: seconds since 1970. `ahead`: pods that are tried before it. `within`: the nodes with GPUs that are
    large enough for its queue's quota (`Fair.rows_within`)."""
    meta = state.pod.metadata
    told = WhenExplanation(namespace=meta.namespace, name=meta.name, state="unknown", sentence="")
    trial = Trial(engine)
    place = trial.place(trial.book.add(state), within)
    if place is not None:
        return msgspec.structs.replace(
            told,
            state="now",
            sentence=f"now, on {place.node}",
            at=seconds_text(now),
            node=place.node,
            assumptions=_assumptions(state, (), ahead, 0),
        )
    ends, without = yield from _known_ends(engine, now)
    found: tuple[float, str] | None = None
    known = engine.book.nodes
    nodes = [name for name in ends if name in known and (within is None or within[known[name].row])]
    nodes.sort(key=lambda name: ends[name][0])
    for count, name in enumerate(nodes):
        if found is not None and ends[name][0].at >= found[0]:
            break
        at = _first_fit(state, engine, name, [end for end in ends[name] if found is None or end.at < found[0]])
        if at is not None:
            found = (at, name)
        if at is not None or count % _NODES_A_STEP == 0:
            yield
    if found is None:
        sentence = "not by known ends: no node has room for it even when every pod whose end is known has ended"
        if leaving := len(engine.book.leaving):
            sentence += f"; slices of pods that are gone, which their nodes have yet to give back: {leaving}"
        return msgspec.structs.replace(
            told, sentence=sentence, assumptions=_assumptions(state, (), ahead, without), without_end=without
        )
    at, name = found
    needed = yield from _needed(state, engine, name, [end for end in ends[name] if end.at <= at])
    if needed is None:
        sentence = (
            f"not by known ends alone: there would be room on {name} in {_duration(round(at - now))}, and "
            "other pods or volumes keep it away"
        )
        return msgspec.structs.replace(
            told, sentence=sentence, assumptions=_assumptions(state, (), ahead, without), without_end=without
        )
    counts_on = tuple(_told(end, name, now) for end in needed)
    pods = ", ".join(f"{end.namespace}/{end.name}" for end in counts_on[:3]) + (
        f" and {len(counts_on) - 3} more" if len(counts_on) > 3 else ""
    )
    in_s = max(0, round(at - now))
    sentence = (
        f"in {_duration(in_s)} at the earliest, on {name}, when {pods} {'has' if len(counts_on) == 1 else 'have'} ended"
    )
    return msgspec.structs.replace(
        told,
        state="known",
        sentence=sentence,
        in_s=in_s,
        at=seconds_text(at),
        node=name,
        counts_on=counts_on[:_SHOWN_MOST],
        assumptions=_assumptions(state, counts_on, ahead, without),
        without_end=without,
    )


def _known_ends(engine: Engine, now: float) -> Steps[tuple[dict[str, list[End]], int]]:
    """By node, in order of time; and how many pods with GPUs have none."""
    ends: dict[str, list[End]] = {}
    without = 0
    for count, node in enumerate(list(engine.book.nodes.values())):
        for state in list(node.pods.values()):
            end = end_of(state, now)
            if end is not None:
                ends.setdefault(node.name, []).append(end)
            else:
                without += state.request is not None and not state.kept_for
        if count % _NODES_A_STEP == 0:
            yield
    for known in ends.values():
        known.sort()
    return ends, without


def _first_fit(state: PodState, engine: Engine, name: str, ends: Sequence[End]) -> float | None:
    """When the pod fits that node, were these the only ends."""
    row, node = engine.row(state), engine.book.nodes.get(name)
    row.refresh()
    here = [end for end in ends if node is not None and end.uid in node.pods]
    if (
        node is None
        or not row.passes[node.row]
        or not opens(state, node, [node.pods[end.uid] for end in here], engine.book)
    ):
        return None
    trial = Trial(engine)
    for end in here:
        trial.book.remove(end.uid)
        if _fits(state, trial, trial.book.nodes[name]):
            return end.at
    return None


def _fits(state: PodState, trial: Trial, node: NodeState) -> bool:
    """By its shape alone."""
    return bool(trial.engine.row(state).refresh()[node.row] > INFEASIBLE) and (
        state.request is None or assign(state, node) is not None
    )


def _needed(state: PodState, engine: Engine, name: str, ends: Sequence[End]) -> Steps[list[End] | None]:
    """Those of the ends without which it would not fit. None where it does not even with all: other pods are in its
    way."""
    needed = [end for end in ends if end.uid in engine.book.pods]
    if not _starts(state, engine, name, needed):
        return None
    for end in list(needed):
        rest = [other for other in needed if other is not end]
        if _starts(state, engine, name, rest):
            needed = rest
        yield
    return needed if _starts(state, engine, name, needed) else None


def _starts(state: PodState, engine: Engine, name: str, ends: Sequence[End]) -> bool:
    trial = Trial(engine)
    for end in ends:
        if end.uid in trial.book.pods:
            trial.book.remove(end.uid)
    return trial.place_on(trial.book.add(state), name) is not None


def _told(end: End, node: str, now: float) -> KnownEnd:
    namespace, _, pod = end.key.partition("/")
    return KnownEnd(namespace=namespace, name=pod, node=node, in_s=max(0, round(end.at - now)), by=end.by)


def _assumptions(state: PodState, counts_on: Sequence[KnownEnd], ahead: int, without: int) -> tuple[str, ...]:
    said = []
    if any(end.by == "expected" for end in counts_on):
        said.append("pods end when their kerf.dev/expected-duration says; nothing enforces it")
    if any(end.by == "deletion" for end in counts_on):
        said.append("pods that are deleted are gone when their grace period is over, or before")
    if any(end.by == "deadline" for end in counts_on):
        said.append("pods run until their activeDeadlineSeconds, not longer and not shorter")
    if counts_on:
        said.append("a GPU is free as soon as its pod has ended")
    if without:
        said.append(f"{without} pods with GPUs say nothing of their end, and are taken to run on")
    if ahead:
        said.append(f"none of the {ahead} pods that are tried before it takes the room")
    if state.gang is not None:
        said.append(f"of gang {state.gang.name} this pod alone is spoken of; it starts with the others or not at all")
    said.append("nodes stay as they are, and no pod is preempted")
    return tuple(said)


def _duration(seconds: int) -> str:
    if seconds < 120:
        return f"{max(0, seconds)} s"
    if seconds < 2 * 3600:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min" if seconds < 48 * 3600 else f"{seconds // 86_400} days"
