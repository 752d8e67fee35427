"""What a container loses because NVML sees more of it than its control block says. Pure.

A container writes its own counters, so it can forge them, and some memory of its processes no call reports. The agent
writes the difference into the orders, which the container cannot write. So a container that forges its account only
lowers its own limit, and one whose processes all forge their tokens gets its share for all of them together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from services.node_agent.strategies.control_block import Surcharge
from services.node_agent.strategies.escapes import PodMemory
from services.node_agent.strategies.overuse import Overuse
from services.node_agent.strategies.slices import Key, Slice
from shared.model.strategies import POLICED
from shared.model.units import MIB

SAMPLES = 3
"""Memory lowers the limit if so many samples in a row show it."""
POLICED_SAMPLES = 2
"""The same for a pod with policed slices, of whose memory samples are taken more often."""
FORGED_FOR_S = 300.0
"""How long after its last overuse a pod's processes keep their lower rate."""
_NOTHING = (0,) * SAMPLES


class Surcharger:
    def __init__(self, slack_mib: int) -> None:
        """`slack_mib`: what a process may hide. It is the slack for actions and not the learned one, because a limit
        that is lowered makes a program fail, too."""
        self._slack_mib = slack_mib
        self._hidden_mib: dict[tuple[str, str], tuple[int, ...]] = {}
        """By pod and GPU: what it hid in the last samples, the newest one last."""
        self._policed_mib: dict[tuple[str, str], tuple[int, ...]] = {}
        """The same of pods with policed slices."""
        self._forged_until_s: dict[tuple[str, str], float] = {}
        """By pod and GPU."""
        self._busy: Mapping[tuple[str, str], int] = {}

    @property
    def memory_bytes(self) -> dict[tuple[str, str], int]:
        """By pod and GPU, what its memory limit is lowered by."""
        both = self._hidden_mib | self._policed_mib
        return {key: min(samples) * MIB for key, samples in both.items() if min(samples)}

    @property
    def forging(self) -> frozenset[tuple[str, str]]:
        """The pods whose processes have a lower rate, each with the GPU."""
        return frozenset(self._forged_until_s)

    def update(
        self,
        now_s: float,
        held: Iterable[PodMemory],
        overuses: Iterable[Overuse],
        *,
        busy: Mapping[tuple[str, str], int],
        answering: Collection[str],
        unreadable: Collection[str] = (),
    ) -> None:
        """Records one sample. `now_s`: seconds of any monotonic clock. `busy`: the number of processes with SM use, by
        pod and GPU. `answering`: the GPUs that the sample covers. `unreadable`: pods whose counters are not all known.
        For other GPUs and for these pods the last figure of memory stays."""
        found = {(one.uid, one.uuid): _hidden_mib(one, self._slack_mib) for one in held}
        kept = {
            key: before for key, before in self._hidden_mib.items() if key[1] not in answering or key[0] in unreadable
        }
        self._hidden_mib = kept | {
            key: (*self._hidden_mib.get(key, _NOTHING)[1:], hidden)
            for key, hidden in found.items()
            if key[1] in answering and key[0] not in unreadable
        }
        self._busy = busy
        until_s = now_s + FORGED_FOR_S
        for over in overuses:
            key = (over.used.uid, over.used.uuid)
            if key in self._forged_until_s or (over.is_proven and over.is_forged):
                self._forged_until_s[key] = until_s
        self._forged_until_s = {key: end_s for key, end_s in self._forged_until_s.items() if end_s > now_s}

    def update_policed(
        self,
        held: Iterable[PodMemory],
        *,
        pods: Collection[str],
        answering: Collection[str],
        unreadable: Collection[str] = (),
    ) -> None:
        """Records one sample of the memory of pods with policed slices, `pods`. They have no slack: each MiB that they
        hide is one that they cannot allocate, or they would exceed their grant without knowing it."""
        found = {(one.uid, one.uuid): _hidden_mib(one, 0) for one in held}
        kept = {
            key: before
            for key, before in self._policed_mib.items()
            if key[0] in pods and (key[1] not in answering or key[0] in unreadable)
        }
        nothing = (0,) * POLICED_SAMPLES
        self._policed_mib = kept | {
            key: (*self._policed_mib.get(key, nothing)[1:], hidden) for key, hidden in found.items()
        }

    def of(self, slices: Iterable[Slice]) -> dict[Key, dict[str, Surcharge]]:
        """Returns the surcharges of these slices, by container and GPU.

        Memory: the lowest of the last samples, because a process may allocate and free between the looks at its control
        block and NVML's. All containers of a pod get the whole, because which of them hides it may be unknown.
        GPU time: the share divided by the pod's processes that use the GPU.
        """
        return {one.key: {part.uuid: self._surcharge(one, part.uuid, part.compute_milli) for part in one.parts}
                for one in slices}  # fmt: skip

    def _surcharge(self, of: Slice, uuid: str, compute_milli: int) -> Surcharge:
        samples = self._policed_mib if of.strategy in POLICED else self._hidden_mib
        memory_bytes = min(samples.get((of.uid, uuid), _NOTHING)) * MIB
        forges = of.reserved and (of.uid, uuid) in self._forged_until_s
        private = max(1, compute_milli // max(1, self._busy.get((of.uid, uuid), 0))) if forges else 0
        return Surcharge(memory_bytes=memory_bytes, private_milli=private)


def _hidden_mib(held: PodMemory, slack_mib: int) -> int:
    """Returns what NVML sees beyond the account and the slack. An account above the grant is forged, and hides
    nothing."""
    return max(0, held.seen_mib - min(held.counted_mib, held.granted_mib) - slack_mib * held.slack_processes)
