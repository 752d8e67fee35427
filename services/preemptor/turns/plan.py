"""Builds the plan of a turn. Pure."""

from __future__ import annotations

import msgspec

from services.preemptor.plans.builder import build_plan_for, victim_of
from services.preemptor.turns.planner import Proposal
from shared.contracts.preemption import Plan


def turn_plan(plan_id: str, proposal: Proposal, *, deadline_s: int) -> Plan:
    job, turn = proposal
    victims = tuple(victim_of(member, turn.action, 0) for one in turn.victims for member in one.job.members)
    plan = build_plan_for(plan_id, job.members, turn.nodes, victims, deadline_s=deadline_s)
    resumed = tuple(
        msgspec.structs.replace(one, resumes=job.resumes, gpus=turn.gpus.get(one.uid, {})) for one in plan.beneficiaries
    )
    return msgspec.structs.replace(plan, turn=True, beneficiaries=resumed)
