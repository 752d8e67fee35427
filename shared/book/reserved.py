"""What a plan needs of its nodes in addition to what its victims still have there. Pure.

Reserved places are booked in addition to the victims (`Ledger.reserve`), so that no other pod gets what is freed.
Another plan on the same node has to fit beside this one whichever is done first: of CPU, memory and other resources it
leaves the larger of what the victims have and what the places need, of GPUs both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

from shared.book.demand import beyond
from shared.book.fork import Fork
from shared.book.states import PodState
from shared.contracts.preemption import HeldPlace
from shared.model.grant import sum_shares

ReservedPlace = tuple[PodState, HeldPlace]
"""A placeholder of a beneficiary, as it is to be booked, and its place."""


def reserve_closed(book: Fork, places: Iterable[ReservedPlace]) -> None:
    """Books these places, and closes their GPUs to others: if two plans shared one, the one that is done first might
    not fit there."""
    for placeholder, place in places:
        book.reserve(placeholder, place.node, place.grant)
        for node, uuid in {} if place.grant is None else sum_shares([place.grant]):
            book.close_gpu(node, uuid, "it is reserved for another pod")


def beyond_victims(places: Iterable[ReservedPlace], victims: Sequence[PodState]) -> list[ReservedPlace]:
    """Returns copies of the placeholders that need only what the victims on their nodes do not have. A victim's part
    counts for one placeholder. `victims`: those that are still there."""
    had = {victim.uid: victim.demand for victim in victims}
    on = {victim.uid: victim.charged for victim in victims}
    out = []
    for placeholder, place in places:
        twin = copy(placeholder)
        for uid in [uid for uid, node in on.items() if node == place.node]:
            twin.demand, had[uid] = beyond(twin.demand, had[uid]), beyond(had[uid], twin.demand)
        out.append((twin, place))
    return out
