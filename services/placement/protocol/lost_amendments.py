"""Amendments that nodes have agreed to and pods' annotations do not say, because etcd was restored. Pure."""

from __future__ import annotations

import msgspec

from shared.model.grant import Grant
from shared.model.resize import higher, same_slices


class Recovered(msgspec.Struct, frozen=True):
    amended: Grant
    """The grant as its pod is to be amended."""
    booked: Grant
    """What the slices may have until then."""


class LostAmendments(dict[str, Grant]):
    """By uid: the grant as its node has amended it."""

    def recover(self, uid: str, given: Grant, opened: Grant | None) -> Recovered | None:
        """Returns what follows for a pod with this grant by its annotation; None if nothing does.

        `opened`: a growth of it that is booked, and may still be written. The new amendment has a number above all that
        the node may have met: another one of a number that it has is ignored there.
        """
        lost = self.get(uid)
        if lost is None:
            return None
        is_known = given.amendment == lost.amendment and given.containers == lost.containers
        if is_known or given.amendment > lost.amendment or not same_slices(lost, given):
            del self[uid]
            return None
        if opened is not None and opened.containers == lost.containers:
            return None
        possible = [lost] if opened is None else [lost, opened]
        number = max(grant.amendment for grant in (given, *possible)) + 1
        booked = given
        for other in possible:
            booked = msgspec.structs.replace(booked, containers=higher(other, booked))
        return Recovered(msgspec.structs.replace(given, containers=lost.containers, amendment=number), booked)
