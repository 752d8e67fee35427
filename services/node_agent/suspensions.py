"""What pods give up for a while without ending, and take back: what is asked of the slices, and what of it is true. Pure.

An order to give up is carried out by the slices' strategies before anybody hears yes; only then is what was given up free for
others at the device gate. An order to take back is the other way round: it counts from the moment it is taken, and is refused
where others have the room. What could not be taken back is tried again with each tick: placement says it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from services.node_agent import gate
from services.node_agent.holdings import Holdings
from services.node_agent.messages import Ask, Done
from services.node_agent.state import Known
from shared.contracts.node_commands import NodeGrant
from shared.model.gpu import Gpu
from shared.model.suspension import Suspension, can_suspend, left_of


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of a grant that was said. `ask` None: nothing is to be done, and `reason` says why not, where it should."""

    came: NodeGrant
    ask: Ask | None = None
    reason: str = ""
    ok: bool = True


def ordered(held: Holdings, came: NodeGrant, node: str, gpus: Mapping[str, Gpu]) -> Order:
    """From now on this grant is known, and suspended as it says where it can be. The caller has seen that the grant may be known."""
    before = held.get(came.grant.grant_id)
    was = None if before is None else before.grant.suspension
    if came.suspension is None and was is None:
        held.remember(came)
        return Order(came=came)
    reason = _cannot(came) or _full(held, before, came, node, gpus)
    if reason:
        known = held.remember(msgspec.structs.replace(came, suspension=was))
        held.put(msgspec.structs.replace(known, owed=came.suspension is None))
        return Order(came=came, reason=reason, ok=came.suspension is not None)
    gave_up = None if before is None else before.gave_up
    held.remember(came)
    containers = tuple(lease.container for lease in held.leases_of(came.grant.grant_id))
    return Order(came=came, ask=Ask(came.grant.grant_id, came.uid, containers, came.suspension, was, gave_up))


def settle(held: Holdings, done: Iterable[Done]) -> dict[str, str]:
    """Notes what the slices have done; why not, by grant, of those that could not."""
    failed: dict[str, str] = {}
    for one in done:
        ask = one.ask
        known = held.get(ask.grant_id)
        if known is None or known.grant.suspension != ask.suspension:
            continue  # another order came meanwhile, and has an answer of its own
        if one.reason:
            failed[ask.grant_id] = one.reason
            if one.torn:
                held.put(msgspec.structs.replace(known, gave_up=None, owed=True))
                continue
            # Slices that failed are as they were before; but of what was to come back from the host some may have come.
            gave_up = None if ask.gave_up is not None and ask.gave_up.action == "checkpoint" else ask.gave_up
            came = msgspec.structs.replace(known.grant, suspension=ask.was)
            held.put(msgspec.structs.replace(known, grant=came, gave_up=gave_up, owed=ask.suspension is None))
        else:
            held.put(msgspec.structs.replace(known, gave_up=ask.suspension))
    return failed


def owed(held: Holdings, node: str, gpus: Mapping[str, Gpu]) -> list[Order]:
    """What comes of trying once more to take back what could not be."""
    waiting = [known.grant for known in held.known if known.owed]
    return [ordered(held, msgspec.structs.replace(came, suspension=None), node, gpus) for came in waiting]


def given_up(held: Holdings, grant_id: str) -> Suspension | None:
    known = held.get(grant_id)
    return None if known is None else known.gave_up


def _cannot(came: NodeGrant) -> str:
    if came.suspension is None or can_suspend(came.suspension.action, came.grant.containers.values()):
        return ""
    strategies = sorted({part.strategy for part in came.grant.containers.values()})
    return f"slices by {' and '.join(strategies)} cannot {came.suspension.action} while they run"


def _full(held: Holdings, before: Known | None, came: NodeGrant, node: str, gpus: Mapping[str, Gpu]) -> str:
    """Why it cannot take back what it has given up; empty where it can."""
    if before is None or before.gave_up is None:
        return ""
    wanted = came.grant if came.suspension is None else left_of(came.grant, came.suspension)
    mine = held.leases_of(came.grant.grant_id)
    shares = held.shares(without=tuple((lease.uid, lease.container) for lease in mine))
    for lease in mine:
        room, part = gate.occupied(shares, node), wanted.containers[lease.container]
        for share in part.gpus:
            why = gate.no_room(share, gpus[share.uuid], room) if share.node == node and share.uuid in gpus else None
            if why is not None:
                return why[1]
        shares.append(part)
    return ""
