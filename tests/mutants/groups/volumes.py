"""Volumes: where they can be attached, and where there is space for new ones."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SPACE = ("tests/unit/shared/scheduling/filters/test_volumes.py",)

MUTANTS = (
    Mutant(
        name="volumes-without-limit",
        what="a pod goes to a node that can attach no more volumes, and waits there with its GPU",
        file="shared/scheduling/filters/volume_limits.py",
        old="len(own[driver] | there[driver]) > count",
        new="len(own[driver]) > count",
        tests=("tests/unit/shared/scheduling/filters/test_volume_limits.py",),
    ),
    Mutant(
        name="volumes-of-pods-without-one",
        what="a volume that a pod of the node has already is attached a second time",
        file="shared/scheduling/filters/volume_limits.py",
        old="not own[driver] <= there[driver] and ",
        new="",
        tests=("tests/unit/shared/scheduling/filters/test_volume_limits.py",),
    ),
    Mutant(
        name="space-for-each-alone",
        what="several volumes are ordered where there is space for one",
        file="shared/scheduling/filters/storage_space.py",
        old="space.holds(asked, wanted)",
        new="space.holds(asked, asked)",
        tests=_SPACE,
    ),
    Mutant(
        name="space-for-what-is-made",
        what="a pod goes elsewhere because its own volume took the last space",
        file="shared/scheduling/filters/storage_space.py",
        old="        if claim.metadata.annotations.get(SELECTED_NODE) == node.name:\n",
        new="        if False:\n",
        tests=_SPACE,
    ),
    Mutant(
        name="facts-of-later-kinds",
        what="no placement can lead while the watchers are of a later version",
        file="shared/bus/feed_reader.py",
        old="            if KINDS.keys() >= set(kinds):\n                raise\n",
        new="            raise\n",
        tests=("tests/unit/shared/bus/test_feed_reader.py",),
    ),
)
