"""What a gang with subgroups lacks, by counting its pods. Pure.

Pods are counted by leaf. Those whose leaf the gang does not know have the leaf "": they count for the gang as a whole.
A gang without subgroups is one leaf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shared.model.subgroup import Subgroup

Counts = Mapping[str, int]
"""A number of pods, by leaf."""


def count(subgroup: Subgroup, pods: Counts) -> int:
    """How many of these pods belong to the subgroup."""
    return sum(pods.values()) if not subgroup.name else sum(pods.get(leaf.name, 0) for leaf in subgroup.leaves())


def is_satisfied(subgroup: Subgroup, has: Counts) -> bool:
    """Whether it has its minimum: enough pods, in enough of its subgroups."""
    if count(subgroup, has) < subgroup.minimum:
        return False
    satisfied = sum(is_satisfied(below, has) for below in subgroup.subgroups)
    return satisfied >= (subgroup.min_subgroups or len(subgroup.subgroups))


def lacking(subgroup: Subgroup, has: Counts, waiting: Counts) -> dict[str, int]:
    """How many more pods of each leaf would satisfy it. Where several choices would, one for which enough pods wait,
    and of these the one with the fewest pods."""
    if not subgroup.subgroups:
        lacks = subgroup.minimum - has.get(subgroup.name, 0)
        return {subgroup.name: lacks} if lacks > 0 else {}
    below = [lacking(one, has, waiting) for one in subgroup.subgroups]
    ordered = sorted(below, key=lambda lacks: (not covers(waiting, lacks), sum(lacks.values())))
    chosen: dict[str, int] = {}
    for fewest in ordered[: subgroup.min_subgroups or len(ordered)]:
        chosen |= fewest
    more = subgroup.minimum - count(subgroup, has) - sum(chosen.values())
    leaves = [leaf.name for leaf in subgroup.leaves()] + ([] if subgroup.name else [""])
    for leaf in leaves:
        extra = min(more, waiting.get(leaf, 0) - chosen.get(leaf, 0))
        if extra > 0:
            chosen[leaf] = chosen.get(leaf, 0) + extra
            more -= extra
    if more > 0:  # too few wait: any leaf stands for them
        chosen[leaves[0]] = chosen.get(leaves[0], 0) + more
    return chosen


def covers(waiting: Counts, lacks: Counts) -> bool:
    """Whether as many pods wait as are lacking."""
    return all(waiting.get(leaf, 0) >= number for leaf, number in lacks.items())


def steps(whole: Subgroup, has: Counts, waiting: Counts, placed: Counts) -> list[dict[str, int]]:
    """The sets of pods of which each is placed all or none, in the order in which they are tried.

    Before the gang is satisfied there is one such set. Afterwards each further pod is one, or all that a further
    subgroup lacks. A gang, or a further subgroup, of which pods are `placed` has begun: it does not wait for others
    that do not exist. `has` may be more than that: pods that another scheduler has placed, or that are done.
    """
    if not is_satisfied(whole, has):
        return _step(whole, has, waiting, placed)
    return list(_further(whole, has, waiting, placed))


def _further(subgroup: Subgroup, has: Counts, waiting: Counts, placed: Counts) -> Iterator[dict[str, int]]:
    if waiting.get(subgroup.name) and (not subgroup.subgroups or not subgroup.name):
        yield {subgroup.name: 1}
    for below in subgroup.subgroups:
        if is_satisfied(below, has):
            yield from _further(below, has, waiting, placed)
        elif count(below, waiting):
            yield from _step(below, has, waiting, placed)


def _step(subgroup: Subgroup, has: Counts, waiting: Counts, placed: Counts) -> list[dict[str, int]]:
    lacks = lacking(subgroup, has, waiting)
    if count(subgroup, placed):
        lacks = {leaf: least for leaf, number in lacks.items() if (least := min(number, waiting.get(leaf, 0)))}
    return [lacks] if lacks else []


def broken(subgroup: Subgroup, before: Counts, left: Counts, ours: Counts) -> Subgroup | None:
    """The topmost subgroup that had its minimum and keeps less, and of which pods that can be ended (`ours`) run on."""
    if is_satisfied(subgroup, before) and not is_satisfied(subgroup, left):
        return subgroup if count(subgroup, ours) else None
    found = (broken(below, before, left, ours) for below in subgroup.subgroups)
    return next((one for one in found if one is not None), None)
