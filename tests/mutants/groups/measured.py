"""What a node measures of itself, and what is kept of it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PLANNER = "tests/unit/services/preemptor/turns/test_planner.py"
_CONSOLIDATION = "tests/unit/services/preemptor/test_consolidation.py"
_CHECKPOINTING = "tests/unit/services/node_agent/strategies/test_checkpointing.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="pairs-of-probes-calibrate-themselves",
        what="two probes that run at once each measure how long their kernel is",
        file="services/node_agent/canary/run.py",
        old="self._lines(gpu, self._under(folder, command), folder, start, environment=environment)",
        new="self._lines(gpu, self._under(folder, command), folder, start)",
        tests=("tests/unit/services/node_agent/canary/test_run.py",),
    ),
    Mutant(
        name="told-speeds-ignored",
        what="turns are priced by the setting on nodes that say how fast they copy",
        file="services/preemptor/turns/copies.py",
        old="return mib / told_mib_per_s if told_mib_per_s else self.fixed_s + mib / self.mib_per_s",
        new="return self.fixed_s + mib / self.mib_per_s",
        tests=(_PLANNER,),
    ),
    Mutant(
        name="told-speeds-and-fixed-costs",
        what="what a copy takes besides its bytes is added to a speed that has it in it",
        file="services/preemptor/turns/copies.py",
        old="return mib / told_mib_per_s if told_mib_per_s else self.fixed_s + mib / self.mib_per_s",
        new="return self.fixed_s + mib / (told_mib_per_s or self.mib_per_s)",
        tests=(_PLANNER,),
    ),
    Mutant(
        name="part-of-a-pod-is-learned-as-all",
        what="a copy of what was left of a pod counts as one of all of it",
        file="services/node_agent/strategies/checkpointing.py",
        old="is_whole = not _in_states(states, CHECKPOINTED)",
        new="is_whole = True",
        tests=(_CHECKPOINTING,),
    ),
    Mutant(
        name="small-copies-are-learned",
        what="a copy of a few MiB tells how fast a node copies",
        file="services/node_agent/strategies/copy_speeds.py",
        old="if mib < MIN_MIB or seconds <= 0:",
        new="if seconds <= 0:",
        tests=("tests/unit/services/node_agent/strategies/test_copy_speeds.py",),
    ),
    Mutant(
        name="given-back-comes-back",
        what="an older record of migrations counts a plan again that was refused",
        file="services/preemptor/consolidation.py",
        old="if plan not in self._given_back}",
        new="}",
        tests=(_CONSOLIDATION,),
    ),
    Mutant(
        name="standby-keeps-its-own",
        what="an instance on standby does not take over what the leader has written of migrations",
        file="services/preemptor/consolidation.py",
        old="            self._spent = dict(record.disturbed)",
        new="            pass",
        tests=(_CONSOLIDATION,),
    ),
)
