"""Notebooks that share GPUs in simulated time: the clock, and both schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from bench.jobs.costs import Costs
from bench.jobs.replay import Copied, Impossible, Order, Resume, Share, Start, Suspend
from bench.notebooks.at_once import AtOnce
from bench.notebooks.day import Day
from bench.notebooks.kerf import Kerf
from bench.notebooks.users import Habits, User

COSTS = Costs(copied_mib_per_s=16_000, fixed_s=1.0, host_mib=1 << 30)
HABITS = Habits(cell_median_s=20.0, cell_sigma=0.2, pause_median_s=200.0, pause_sigma=0.2)
ALL = (Share(0, 1000, 16_000),)


class Script:
    """Gives these orders, by second, and notes what the node says."""

    def __init__(self, orders: dict[int, list[Order]]) -> None:
        self._orders, self.idle, self.woken = orders, dict[int, float](), dict[int, dict[int, float]]()

    def second(
        self,
        now_s: float,
        arrived: list[int],
        copied: list[Copied],
        idle: Mapping[int, float],
        woken: Mapping[int, float],
    ) -> Sequence[Order]:
        del arrived, copied
        for job in idle:
            self.idle.setdefault(job, now_s)
        if woken:
            self.woken.setdefault(int(now_s), dict(woken))
        return self._orders.get(int(now_s), [])


def test_a_notebook_with_a_gpu_of_its_own_is_never_late() -> None:
    cells = Day(1, 1, HABITS, COSTS, idle_after_s=10).run(Script({0: [Start(0, ALL)]}), 1)
    assert len(cells.length_s) > 10
    assert max(cells.late_s) < 1.0
    assert cells.busy_s == pytest.approx(sum(cells.length_s), abs=40)


def test_a_suspended_notebook_is_idle_until_it_wants_its_gpu_and_then_waits_for_the_copy() -> None:
    first_s = User(HABITS, "user-0").pause_s()
    back = int(first_s) + 50
    script = Script({0: [Start(0, ALL)], 20: [Suspend(0, "host")], back: [Resume(0, ALL)]})
    cells = Day(1, 1, HABITS, COSTS, idle_after_s=10).run(script, 1)
    assert script.idle[0] == 10
    assert min(script.woken) == pytest.approx(first_s + 1, abs=1), "one sample later"
    assert (cells.turns, cells.copied_s) == (1, 4.0)
    assert cells.late_s[0] == pytest.approx(50 + 2, abs=2)
    assert cells.host_mib_peak == 16_000


def test_no_gpu_is_given_to_two() -> None:
    with pytest.raises(Impossible, match="given to two"):
        Day(2, 1, HABITS, COSTS, idle_after_s=10).run(Script({0: [Start(0, ALL)], 5: [Start(1, ALL)]}), 1)


@pytest.mark.parametrize("which", ["kerf", "at_once"])
def test_four_notebooks_on_one_gpu_all_run_their_cells(which: str) -> None:
    day = Day(4, 1, HABITS, COSTS, idle_after_s=10 if which == "kerf" else 0, sampled_s=1 if which == "kerf" else 0)
    cells = day.run(Kerf(day.jobs, 1, COSTS) if which == "kerf" else AtOnce(1), 1)
    assert cells.never_placed == 0
    alone = Day(1, 1, HABITS, COSTS, idle_after_s=10).run(Script({0: [Start(0, ALL)]}), 1)
    assert len(cells.length_s) > 3 * len(alone.length_s)
    assert cells.turns > 10
