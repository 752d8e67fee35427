"""Queries of why, what if, when, and how to free capacity, each in steps that delay nothing. Nothing here changes
anything."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from services.placement.core import Core
from services.placement.explain import turns
from services.placement.explain.consolidation_advice import GPUS_MOST, GROUPS_MOST, Goal, advise
from services.placement.explain.explainer import Explainer
from services.placement.explain.reserved import reserved_for, reserved_text
from services.placement.explain.scale import NODES_MOST as SCALE_NODES_MOST
from services.placement.explain.scale import scale
from services.placement.explain.steps import Steps, undisturbed
from services.placement.explain.what_if_clusters import Impossible, change
from services.placement.explain.when import when, when_beside, when_kept
from services.placement.preemption.consolidation import exclusion_filter
from services.placement.queries import Answers
from services.placement.scheduling.unsupported_fields import refusal
from shared.book.levels import begun_in
from shared.book.manifests import NoManifest, read_pod
from shared.book.states import PodState
from shared.contracts.queries import (
    ADVISE,
    SCALE,
    WHAT_IF,
    WHEN,
    WHY,
    AdviseAnswer,
    AdviseQuery,
    ExplainAnswer,
    ScaleAnswer,
    ScaleQuery,
    WhatIfQuery,
    WhenAnswer,
    WhenQuery,
    WhyQuery,
)

NODES_MOST = 500
GANG_MOST = 64
"""How many gang members migrations are searched for together."""


class Unanswerable(ValueError):
    """There is no answer. The text says why, and what to ask instead."""


def why(core: Core, query: WhyQuery, now: float, wall: float) -> Steps[ExplainAnswer]:
    """`now` is the core's clock, `wall` seconds since 1970."""
    try:
        state = _known(core, query.namespace, query.name)
    except Unanswerable as error:
        return ExplainAnswer(error=str(error))
    waiting_s = now - core.scheduler.first_seen.get(state.uid, now)
    explanation = yield from core.explainer.explain(
        state,
        max_nodes=min(query.max_nodes, NODES_MOST),
        waiting_s=waiting_s,
        ahead=core.queue.ahead_of(state.uid),
        now=wall,
    )
    beside = [
        words for words in (core.preemption.describe(state.uid), core.preemption.suspension_text(state.uid)) if words
    ]
    resize = core.resizer.status.explain(state.uid)
    if resize is not None and resize.phase != "done":
        beside.append(f"its resize is {resize.phase}: {resize.sentence}")
    explanation = replace(explanation, sentence="; ".join((explanation.sentence, *beside)), resize=resize)
    reserved = reserved_for(core.backfill, state.uid)
    if reserved is not None:
        explanation = replace(explanation, sentence=f"{explanation.sentence}; {reserved_text(reserved)}")
    turn = turns.standing(state, core.book, core.turns, wall)
    if turn is not None:
        explanation = replace(explanation, sentence=f"{explanation.sentence}; {turns.sentence(turn)}")
    waits = explanation.state == "waiting" and not any(
        reason.code.startswith("queue-") for reason in explanation.summary
    )
    if waits and not beside and core.preemption.could_preempt(state):
        ask = f"kerf preempt --dry-run {state.key} says which pods would be preempted for it, or why none would"
        explanation = replace(explanation, helps=(*explanation.helps, ask))
    return ExplainAnswer(explanation=explanation)


def what_if(core: Core, query: WhatIfQuery, wall: float) -> Steps[ExplainAnswer]:
    """A pod that need not exist, as if it were created now in its canonical form; or another cluster; or both."""
    most, engine = min(query.max_nodes, NODES_MOST), core.engine
    changed = bool(query.drain or query.add_nodes or query.add_gpus or query.resize)
    try:
        state = read_pod(query.pod) if query.pod is not None or not changed else None
        if not changed and state is not None:
            explanation = yield from core.explainer.explain(state, max_nodes=most, exists=False, now=wall)
            return ExplainAnswer(explanation=explanation)
        waiting = core.queue.oldest(len(core.queue))
        kept = {uid for uid in waiting if core.fair.quota_exceeded((core.book.pods[uid],)) is not None}
        world = yield from undisturbed(engine, lambda still: change(query, still, core.gangs, waiting, wall, kept=kept))
        if state is None:
            return ExplainAnswer(world=world.told)
        explanation = yield from Explainer.of(world.trial.book, world.trial.engine).explain(
            state, max_nodes=most, exists=False
        )
        return ExplainAnswer(explanation=explanation, world=world.told)
    except (Unanswerable, Impossible, NoManifest) as error:
        return ExplainAnswer(error=str(error))


def scale_(core: Core, query: ScaleQuery, wall: float) -> Steps[ScaleAnswer]:  # noqa: ARG001 - as the others
    if not 1 <= query.max_nodes <= SCALE_NODES_MOST:
        return ScaleAnswer(error=f"{query.max_nodes} nodes are not tried; a number from 1 to {SCALE_NODES_MOST} is")
    waiting = core.queue.oldest(len(core.queue))
    kept = {uid for uid in waiting if core.fair.quota_exceeded((core.book.pods[uid],)) is not None}
    told = yield from undisturbed(
        core.engine, lambda still: scale(still, core.gangs, waiting, max_nodes=query.max_nodes, kept=kept)
    )
    return ScaleAnswer(scale=told)


def when_(core: Core, query: WhenQuery, wall: float) -> Steps[WhenAnswer]:
    try:
        state = _known(core, query.namespace, query.name)
        turn = turns.standing(state, core.book, core.turns, wall)
        if turn is not None and turn.suspended:
            return WhenAnswer(when=turns.when_suspended(state, turn, wall))
        state = _waiting(core, query.namespace, query.name)
    except Unanswerable as error:
        return WhenAnswer(error=str(error))
    kept, within = core.preemption.reserved_for(state.uid), core.fair.rows_within(state)
    if kept is not None:
        give_way = partial(core.preemption.give_way, kept)
        told = yield from undisturbed(core.engine, lambda still: when_kept(state, still, wall, give_way, within=within))
    elif core.backfill.against(state.uid):
        beside, ahead = partial(core.backfill.reserve_for, state.uid), core.queue.ahead_of(state.uid)
        told = yield from undisturbed(
            core.engine, lambda still: when_beside(state, still, wall, beside, ahead=ahead, within=within)
        )
    else:
        told = yield from when(state, core.engine, wall, ahead=core.queue.ahead_of(state.uid), within=within)
    reserved = reserved_for(core.backfill, state.uid)
    if reserved is not None:
        told = replace(told, reserved=reserved, sentence=f"{told.sentence}; {reserved_text(reserved)}")
    elif too_large := core.backfill.too_large_for(state.uid):
        told = replace(told, sentence=f"{told.sentence}; {too_large}")
    if turn is not None:
        told = replace(told, turn=turn, sentence=f"{told.sentence}; {turns.sentence(turn)}")
    return WhenAnswer(when=told)


def advise_(core: Core, query: AdviseQuery, wall: float) -> Steps[AdviseAnswer]:
    try:
        goal = _goal(core, query)
    except (Unanswerable, NoManifest) as error:
        return AdviseAnswer(error=str(error))
    advice = yield from undisturbed(core.engine, lambda still: advise(still, goal, wall, query.most_gpu_seconds))
    return AdviseAnswer(advice=advice)


def _goal(core: Core, query: AdviseQuery) -> Goal:
    if query.pod is not None:
        return Goal(states=(read_pod(query.pod),), can_spare=core.gangs.can_spare)
    if query.name:
        return _goal_of(core, query)
    if not (1 <= query.gpus <= GPUS_MOST and 1 <= query.groups <= GROUPS_MOST):
        raise Unanswerable(
            f"name a waiting pod, give a manifest, or ask for 1 to {GROUPS_MOST} groups of 1 to {GPUS_MOST} GPUs"
        )
    return Goal(gpus=query.gpus, groups=query.groups, can_spare=core.gangs.can_spare)


def _goal_of(core: Core, query: AdviseQuery) -> Goal:
    """Room for a waiting pod, or for as many of its gang as must be placed together."""
    first = _known(core, query.namespace, query.name)
    gang = core.gangs.of(first.uid)
    states = [_waiting(core, query.namespace, query.name, alone=gang is None)]
    if gang is not None:
        ordered = sorted(
            (core.book.pods[uid] for uid in gang.waiting), key=lambda s: (s.pod.metadata.creation_timestamp, s.uid)
        )
        states = [core.book.pods[uid] for uid in gang.together([state.uid for state in ordered])]
        if not states:
            raise Unanswerable(
                f"gang {gang.name} has {gang.members} of {gang.minimum} pods: the others must come before any "
                "room would help"
            )
        if gang.need > GANG_MOST:
            raise Unanswerable(
                f"gang {gang.name} needs {gang.need} places at once; moves are looked for for up to {GANG_MOST}"
            )
        _not_kept_back(core, states, f"gang {gang.name}")
    plans = [] if query.for_plan is None else [reserved.plan for reserved in core.preemption.reservations.values()]
    return Goal(
        states=tuple(states),
        gang="" if gang is None else gang.name,
        within="" if gang is None else gang.required,
        begun=frozenset() if gang is None else begun_in(gang, core.book),
        waits=True,
        can_spare=core.gangs.can_spare,
        busy=frozenset(beneficiary.node for plan in plans for beneficiary in plan.beneficiaries),
        spared=None
        if query.for_plan is None
        else exclusion_filter(
            query.for_plan,
            {victim.uid for plan in plans for victim in plan.victims},
            core.fair.is_non_borrowing,
        ),
    )


def _known(core: Core, namespace: str, name: str) -> PodState:
    uid = core.book.uid_by_key.get(f"{namespace}/{name}")
    if uid is None:
        raise Unanswerable(f"no pod {namespace}/{name} is known; check the name and the namespace (-n)")
    state = core.book.pods[uid]
    if not state.ours:
        raise Unanswerable(
            f"pod {namespace}/{name} is not Kerf's: its schedulerName is "
            f"{state.pod.spec.scheduler_name or 'default-scheduler'!r}"
        )
    return state


def _waiting(core: Core, namespace: str, name: str, *, alone: bool = True) -> PodState:
    """`alone`: it is not a member of a gang, or is explained as if it were not."""
    state = _known(core, namespace, name)
    why_never = refusal(state)
    if why_never is not None:
        raise Unanswerable(f"pod {namespace}/{name} is never placed as it is written: {why_never.sentence}")
    if state.charged or not state.wants_place:
        raise Unanswerable(f"pod {namespace}/{name} does not wait for a place; `kerf why` says how it stands")
    if alone:
        _not_kept_back(core, [state], f"pod {namespace}/{name}")
    return state


def _not_kept_back(core: Core, states: list[PodState], whom: str) -> None:
    kept = core.fair.quota_exceeded(states, len(states))
    if kept is not None:
        raise Unanswerable(f"free capacity would not help {whom} now: {kept.sentence}")


ANSWERS: Answers = {
    WHY.name: lambda core, query, at: why(core, query, at.now, at.wall),
    WHAT_IF.name: lambda core, query, at: what_if(core, query, at.wall),
    SCALE.name: lambda core, query, at: scale_(core, query, at.wall),
    WHEN.name: lambda core, query, at: when_(core, query, at.wall),
    ADVISE.name: lambda core, query, at: advise_(core, query, at.wall),
}
