"""Subgroups: the parts of a gang, a tree in which each part has a minimum and a topology of its own.

The leaves have pods: the head and the workers of a Ray cluster, the roles of a training job. An inner subgroup has
subgroups, such as the replicas of a server of which each has prefill and decode workers.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Subgroup(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    """Unique in its gang. The gang as a whole has none."""
    minimum: int = 0
    """How many pods it needs at once, at least; 0 for one whose subgroups say it all."""
    required: str = ""
    """The node label of which all nodes of its pods have one value; empty: none."""
    preferred: str = ""
    subgroups: tuple[Subgroup, ...] = ()
    min_subgroups: int = 0
    """How many of its subgroups it needs; 0: all."""

    def leaves(self) -> Iterator[Subgroup]:
        """The subgroups that have pods. Itself, if it has no subgroups."""
        if not self.subgroups:
            yield self
        for subgroup in self.subgroups:
            yield from subgroup.leaves()

    def all(self) -> Iterator[Subgroup]:
        """Itself and everything below."""
        yield self
        for subgroup in self.subgroups:
            yield from subgroup.all()

    def path(self, leaf: str) -> tuple[Subgroup, ...]:
        """From itself down to this leaf; itself alone if there is no such leaf."""
        for subgroup in self.subgroups:
            if any(one.name == leaf for one in subgroup.leaves()):
                return self, *subgroup.path(leaf)
        return (self,)

    @property
    def least(self) -> int:
        """How many pods it has at least once it has started."""
        enough = self.min_subgroups or len(self.subgroups)
        return max(self.minimum, sum(sorted(subgroup.least for subgroup in self.subgroups)[:enough]))
