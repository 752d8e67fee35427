"""Builds a plan from options: its beneficiaries, victims, actions and price. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from services.preemptor.planning.candidate import Candidate
from services.preemptor.planning.planner import Option
from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.preemption import ENDS, Action, Beneficiary, Plan, Victim
from shared.model.life import grace_s


def build_plan(
    plan_id: str,
    members: Sequence[PodState],
    options: Sequence[Option],
    elsewhere: Mapping[str, str],
    book: Book,
    *,
    deadline_s: int,
) -> Plan:
    """Returns the plan of the members' options.

    `elsewhere`: target nodes of victims that migrate, by uid. `deadline_s`: in addition to the victims' grace periods.
    """
    victims = tuple(
        _victim(candidate, book.pods[candidate.uid], elsewhere.get(candidate.uid, ""))
        for option in options
        for candidate in option.victims
    )
    return build_plan_for(plan_id, members, [option.node for option in options], victims, deadline_s=deadline_s)


def build_plan_for(
    plan_id: str,
    members: Sequence[PodState],
    nodes: Sequence[str],
    victims: tuple[Victim, ...],
    *,
    deadline_s: int,
    consolidates: bool = False,
) -> Plan:
    """Returns the plan that places the members on these nodes."""
    return Plan(
        plan_id=plan_id,
        beneficiaries=_gains(members, nodes),
        victims=victims,
        deadline_s=deadline_of(victims, deadline_s),
        price_gpu_seconds=sum(v.lost_gpu_seconds for v in victims),
        consolidates=consolidates,
    )


def deadline_of(victims: Iterable[Victim], deadline_s: int) -> int:
    """Returns the deadline with the longest grace period added.

    Cancelling earlier would waste the evictions.
    """
    return deadline_s + max((victim.grace_s for victim in victims), default=0)


def _gains(members: Iterable[PodState], nodes: Iterable[str]) -> tuple[Beneficiary, ...]:
    """Returns the members as beneficiaries, each with its node."""
    return tuple(
        Beneficiary(uid=state.uid, namespace=state.pod.metadata.namespace, name=state.pod.metadata.name, node=node)
        for state, node in zip(members, nodes, strict=True)
    )


def victim_of(
    state: PodState, action: Action, price_gpu_ms: int, *, to: str = "", keeps_milli: int = 0, keeps_mib: int = 0
) -> Victim:
    """Returns a pod as victim. `to`: the node where capacity is reserved for its replacement.

    `keeps_milli`, `keeps_mib`: what it keeps of each GPU if it is suspended.
    """
    meta = state.pod.metadata
    return Victim(
        uid=state.uid,
        namespace=meta.namespace,
        name=meta.name,
        grant_id=state.grant_id,
        action=action,
        to=to,
        keeps_milli=keeps_milli,
        keeps_mib=keeps_mib,
        lost_gpu_seconds=price_gpu_ms // 1000,
        grace_s=grace_s(state.pod) if action in ENDS else 0,
    )


def _victim(candidate: Candidate, state: PodState, to: str) -> Victim:
    return victim_of(
        state,
        "move" if to else candidate.action,
        candidate.price_gpu_ms,
        to=to,
        keeps_milli=candidate.keeps_milli,
        keeps_mib=candidate.keeps_mib,
    )
