"""Tells a call that hangs from one whose process gets no CPU. The arithmetic is pure; `Clock` reads proc(5).

A container with a small CPU limit, or on an overloaded node, is not run for most of the time. A call into the driver
then takes long though the driver answers at once. So a time limit counts only the time in which the calling thread
could have gone on:
- while it is blocked, in the driver or elsewhere: the time that passes, less what the thread or the event loop's thread
  waited for a CPU (the run delay of schedstat, which includes what a cgroup's quota withholds);
- while it is runnable: the CPU time that it got;
- never more than two intervals between two looks: more means that the whole process did not run (stopped, frozen).

https://docs.kernel.org/scheduler/sched-stats.html has the fields of schedstat.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

RUNNABLE = "R"
UNKNOWN = "S"


class Look(msgspec.Struct, frozen=True):
    """A thread at one moment. `state` is proc(5)'s letter; times are in nanoseconds since the thread began."""

    at_ns: int
    state: str = UNKNOWN
    cpu_ns: int = 0
    delay_ns: int = 0
    """How long it has waited for a CPU while it could run."""
    loop_delay_ns: int = 0
    """The same of the event loop's thread, which may hold the interpreter's lock while it waits."""


def counted_ns(before: Look, now: Look, interval_ns: int) -> int:
    """How much of the time between two looks counts towards the time limit of the thread's call."""
    passed = now.at_ns - before.at_ns
    if now.state == RUNNABLE:
        could = now.cpu_ns - before.cpu_ns
    else:
        could = passed - max(now.delay_ns - before.delay_ns, now.loop_delay_ns - before.loop_delay_ns)
    return max(0, min(could, 2 * interval_ns))


class Clock:
    """Looks at threads of this process. A kernel without schedstat reports no delays: then all time counts."""

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._proc = proc

    def look(self, thread_id: int, loop_thread_id: int) -> Look:
        """The calling thread is `loop_thread_id`. A thread that has ended counts as blocked."""
        state, cpu_ns, delay_ns = self._thread(thread_id)
        return Look(time.monotonic_ns(), state, cpu_ns, delay_ns, self._thread(loop_thread_id)[2])

    def _thread(self, thread_id: int) -> tuple[str, int, int]:
        task = self._proc / "task" / str(thread_id)
        try:
            state = (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
            cpu_ns, delay_ns, _ = (task / "schedstat").read_text().split()
        except (OSError, ValueError, IndexError):
            return UNKNOWN, 0, 0
        return state, int(cpu_ns), int(delay_ns)
