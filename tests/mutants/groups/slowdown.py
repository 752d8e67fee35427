"""Sharing that is weighed: none is slower than it accepts, and nothing is claimed of pods of which nothing is known."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OUTLOOK = "shared/scheduling/slowdown/outlook.py"
CHOICE = ("tests/unit/shared/scheduling/filters/test_slowdown.py",)
LEARNING = ("tests/unit/shared/scheduling/slowdown/test_learning.py",)

MUTANTS = (
    Mutant(
        name="slowdown-of-neighbours",
        what="neighbours may become slower than they accept",
        file=OUTLOOK,
        old="if too_slow is None and one.max_slowdown_milli and after",
        new="if not one.known and after",
        tests=CHOICE,
    ),
    Mutant(
        name="slowdown-of-the-pod",
        what="a pod may become slower than it accepts",
        file=OUTLOOK,
        old="if accepted_milli and own * 1000 > accepted_milli:",
        new="if False:",
        tests=CHOICE,
    ),
    Mutant(
        name="slowdown-by-strangers",
        what="a neighbour of which nothing is known counts as one that does nothing",
        file=OUTLOOK,
        old="UNKNOWN = UseProfile()",
        new="UNKNOWN = UseProfile(busy_milli=0)",
        tests=CHOICE,
    ),
    Mutant(
        name="slowdown-on-instances",
        what="a pod gets the smallest instance, however slow it is there",
        file="shared/scheduling/choosing.py",
        old="instance_ask(self._pod, name, ask, room) if self._pod.adaptive else ask",
        new="ask",
        tests=CHOICE,
    ),
    Mutant(
        name="slowdown-unasked",
        what="learned profiles are weighed for pods that declare nothing",
        file="services/placement/scheduling/profiles.py",
        old="if not (state.adaptive or self._weigh_learned):",
        new="if False:",
        tests=CHOICE,
    ),
    Mutant(
        name="slowdown-waits-as-pauses",
        what="waits at the gate count as pauses",
        file="shared/scheduling/slowdown/learning.py",
        old="ran = 1.0 if alone or waited is None else 1 - waited / WHOLE_GPU_MILLI",
        new="ran = 1.0",
        tests=LEARNING,
    ),
)
