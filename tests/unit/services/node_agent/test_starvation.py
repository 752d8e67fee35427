"""How much time counts towards the limit of a call: the time in which its thread could have gone on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from services.node_agent.starvation import Clock, Look, counted_ns

INTERVAL = 100
BLOCKED, RUNNABLE, STOPPED = "D", "R", "T"


@pytest.mark.parametrize(
    ("now", "counted"),
    [
        (Look(100, BLOCKED), 100),
        (Look(100, "S"), 100),
        (Look(100, BLOCKED, delay_ns=30), 70),
        (Look(100, BLOCKED, loop_delay_ns=90), 10),
        (Look(100, BLOCKED, delay_ns=100, loop_delay_ns=100), 0),
        (Look(100, RUNNABLE, cpu_ns=5), 5),
        (Look(100, RUNNABLE), 0),
        (Look(100, RUNNABLE, cpu_ns=100), 100),
        (Look(60_000, BLOCKED), 2 * INTERVAL),
    ],
    ids=[
        "blocked in the driver",
        "blocked in an interruptible call",
        "was runnable for a part of it",
        "the event loop waited, perhaps with the interpreter's lock",
        "got no CPU at all",
        "runnable, and got little",
        "runnable, and got none",
        "spins in the driver",
        "the whole process was stopped",
    ],
)
def test_what_counts(now: Look, counted: int) -> None:
    assert counted_ns(Look(0), now, INTERVAL) == counted


def test_the_kernel_reports_what_a_thread_has_run() -> None:
    me = threading.get_native_id()
    before = Clock().look(me, me)
    sum(range(10**6))
    now = Clock().look(me, me)
    assert now.state == RUNNABLE
    assert now.cpu_ns > before.cpu_ns


def test_without_schedstat_all_time_counts(tmp_path: Path) -> None:
    look = Clock(tmp_path).look(1, 2)
    assert (look.state, look.cpu_ns, look.delay_ns, look.loop_delay_ns) == ("S", 0, 0, 0)
