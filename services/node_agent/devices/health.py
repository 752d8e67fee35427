"""Judges the health of a node's GPUs. Pure: observations and the time in, a state for each GPU out.

1. A fatal fault takes a GPU out at once, and each symptom of a fault keeps it out for as long as it is seen.
2. A GPU comes back only after `recover_s` without a fault. Meanwhile it is suspect, and the reason names the last
   fault.
3. A fault that only a reset or a reboot clears (an ailment) stays until there is evidence of one: another boot, the
   driver loaded again, the driver's recovery action back to none, or an operator who clears it.
   Ailments outlive the agent.
4. What 2 rests on outlives the agent, too, within one boot: `histories`. An agent that starts judges a GPU as if it had
   been there, or more strictly; only a slowdown that does not count yet begins anew.
5. Heat, the power brake and a slow PCIe link only count as faults once they have lasted `throttled_s`. A power cap
   never counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from services.node_agent.devices.xid import classify
from services.node_agent.state import Ailment, GpuHistory
from shared.model.gpu import GpuState

HOT, POWER_BRAKE = 0x40, 0x80
"""NVML's clock event reasons for hardware thermal slowdown and for the power brake. The software reasons and the power
cap are normal for a busy GPU."""
RECOVERY: dict[int, tuple[GpuState, str]] = {
    1: ("unhealthy", "the driver asks for a GPU reset"),
    2: ("unhealthy", "the driver asks for a reboot of the node"),
    3: ("suspect", "the driver asks to end its peer-to-peer traffic"),
    4: ("unhealthy", "the driver asks to end peer-to-peer traffic and reset the GPU"),
    5: ("suspect", "the driver asks to recover the IMEX domain"),
    6: ("unhealthy", "the driver asks for a reset of the PCIe bus"),
    7: ("unhealthy", "the driver asks for a reboot of the system"),
}
"""State and reason by nvmlDeviceGpuRecoveryAction_t; 0 is none."""
_WORSE: dict[GpuState, int] = {"healthy": 0, "suspect": 1, "unhealthy": 2, "draining": 0}


class Symptoms(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU reports in one poll. A default value means that this device or driver does not report it."""

    uuid: str
    lost: str = ""
    """Why the GPU could not be read, in NVML's words. Then nothing else is known."""
    silent: str = ""
    """Why no GPU could be read: no driver, or NVML hangs. Then nothing else is known."""
    recovery: int = -1
    rows_pending: bool = False
    rows_failed: bool = False
    remaps_rows: bool = False
    ecc_volatile: int = 0
    """Uncorrectable errors since the driver was loaded."""
    ecc_aggregate: int = 0
    """Uncorrectable errors in the GPU's life. Shown, but never judged: NVIDIA replaces GPUs by failed remapping, not by
    count."""
    pcie_width: int = 0
    max_pcie_width: int = 0
    pcie_generation: int = 0
    max_pcie_generation: int = 0
    busy: bool = False
    clock_reasons: int = 0
    fabric_down: bool = False
    """The GPU belongs to an NVSwitch fabric that is not up: CUDA does not start."""


class _Gpu:
    """The history of one GPU. `fault`: the last fault, `fault_at`: when it was last seen; None: never. `is_faulty`,
    `is_slow`: whether a fault was seen in the last poll, and whether a slowdown counted as one."""

    def __init__(self) -> None:
        self.symptoms: Symptoms | None = None
        self.fault = ""
        self.fault_at: float | None = None
        self.slow_since: float | None = None
        self.ecc_volatile: int | None = None
        self.is_faulty = self.is_slow = False

    @classmethod
    def restored(cls, saved: GpuHistory, now: float) -> _Gpu:
        """The history as an agent that starts at `now` takes it over.

        A fault that was still seen when it was saved may have lasted until now. No moment is later than now, although
        they were rounded.
        """
        gpu = cls()
        gpu.fault, gpu.ecc_volatile = saved.fault, saved.ecc_volatile
        if saved.fault_seen:
            gpu.fault_at = now
        elif saved.fault_at_s is not None:
            gpu.fault_at = min(float(saved.fault_at_s), now)
        if saved.slow_since_s is not None:
            gpu.slow_since = min(float(saved.slow_since_s), now)
        return gpu

    def history(self, uuid: str, boot_id: str) -> GpuHistory:
        """The same for as long as a fault lasts, and for all faults of one second."""
        return GpuHistory(
            uuid=uuid,
            boot_id=boot_id,
            fault=self.fault,
            fault_seen=self.is_faulty,
            fault_at_s=None if self.is_faulty or self.fault_at is None else math.ceil(self.fault_at),
            slow_since_s=math.floor(self.slow_since) if self.is_slow and self.slow_since is not None else None,
            ecc_volatile=self.ecc_volatile,
        )


class Health:
    def __init__(
        self,
        ailments: Iterable[Ailment] = (),
        histories: Iterable[GpuHistory] = (),
        *,
        recover_s: float = 30.0,
        throttled_s: float = 60.0,
        harmless_xids: Iterable[int] = (),
    ) -> None:
        self._recover_s, self._throttled_s = recover_s, throttled_s
        self._harmless = frozenset(harmless_xids)
        self._ailments = {a.uuid: msgspec.structs.replace(a, recovery_seen=True) for a in ailments}
        self._saved = tuple(histories)
        self._gpus: dict[str, _Gpu] = {}
        self._boot_id = ""
        self._loaded: int | None = None

    @property
    def ailments(self) -> tuple[Ailment, ...]:
        return tuple(self._ailments[uuid] for uuid in sorted(self._ailments))

    @property
    def histories(self) -> tuple[GpuHistory, ...]:
        """What a later agent of this boot must know. It changes when faults begin and end, and not with each poll."""
        return tuple(gpu.history(uuid, self._boot_id) for uuid, gpu in sorted(self._gpus.items()))

    def update(self, symptoms: Iterable[Symptoms], boot_id: str, loaded: int, now: float) -> None:
        """Takes the observations of one poll.

        `loaded` changes each time the driver was loaded again, as far as this process knows.
        """
        if self._loaded is None:
            earlier = {one.uuid: _Gpu.restored(one, now) for one in self._saved if one.boot_id == boot_id}
            self._gpus = earlier | self._gpus
        elif loaded != self._loaded:
            self._ailments = {uuid: a for uuid, a in self._ailments.items() if a.reboot}
            for gpu in self._gpus.values():
                gpu.ecc_volatile = None
        self._ailments = {uuid: a for uuid, a in self._ailments.items() if a.boot_id == boot_id}
        self._boot_id, self._loaded = boot_id, loaded
        for seen in symptoms:
            gpu = self._gpus.setdefault(seen.uuid, _Gpu())
            self._update_history(gpu, seen, now)
            gpu.symptoms = seen
            self._follow_recovery(seen)
            fault = self._current_fault(gpu, now)
            gpu.is_faulty, gpu.is_slow = fault is not None, self._is_slow(gpu, now)
            if fault is not None:
                gpu.fault, gpu.fault_at = fault[1], now

    def xid(self, uuid: str, number: int, now: float) -> None:
        """Takes an XID that the driver reports for a GPU. Without a UUID it counts for all GPUs."""
        verdict, reason = ("harmless", "") if number in self._harmless else classify(number)
        if verdict == "harmless":
            return
        for each in [uuid] if uuid else list(self._gpus):
            gpu = self._gpus.setdefault(each, _Gpu())
            gpu.fault, gpu.fault_at = reason, now
            old = self._ailments.get(each)
            if verdict != "suspect" and (old is None or (verdict == "reboot" and not old.reboot)):
                self._ailments[each] = Ailment(
                    uuid=each, reason=reason, boot_id=self._boot_id, reboot=verdict == "reboot"
                )

    def clear_ailments(self, uuid: str) -> None:
        """Forgets the ailment of a GPU that an operator has repaired. What is still wrong shows at the next poll."""
        self._ailments.pop(uuid, None)
        if uuid in self._gpus:
            self._gpus[uuid].fault_at = None

    def state(self, uuid: str, now: float) -> tuple[GpuState, str]:
        """The state of a GPU, and the reason if it is not healthy."""
        gpu, ailment = self._gpus.get(uuid), self._ailments.get(uuid)
        if ailment is not None:
            return "unhealthy", f"{ailment.reason}; needs {'a reboot' if ailment.reboot else 'a GPU reset'}"
        if gpu is None:
            return "healthy", ""
        if fault := self._current_fault(gpu, now):
            return fault
        if gpu.fault_at is not None and now - gpu.fault_at < self._recover_s:
            return "suspect", f"no fault for less than {self._recover_s:g} s after: {gpu.fault}"
        return "healthy", ""

    def _update_history(self, gpu: _Gpu, seen: Symptoms, now: float) -> None:
        """Updates what only shows in comparison with earlier polls: how long the GPU is slow, and new ECC errors."""
        if seen.lost or seen.silent:
            return
        gpu.slow_since = None if not _slowdown(seen) else now if gpu.slow_since is None else gpu.slow_since
        if gpu.ecc_volatile is not None and seen.ecc_volatile > gpu.ecc_volatile:
            gpu.fault, gpu.fault_at = f"{seen.ecc_volatile - gpu.ecc_volatile} new uncorrectable ECC errors", now
        gpu.ecc_volatile = seen.ecc_volatile

    def _follow_recovery(self, seen: Symptoms) -> None:
        ailment = self._ailments.get(seen.uuid)
        if ailment is None or ailment.reboot:
            return
        if seen.recovery > 0:
            self._ailments[seen.uuid] = msgspec.structs.replace(ailment, recovery_seen=True)
        elif seen.recovery == 0 and ailment.recovery_seen:
            del self._ailments[seen.uuid]

    def _current_fault(self, gpu: _Gpu, now: float) -> tuple[GpuState, str] | None:
        """The worst fault that is seen now, or None."""
        found = [] if gpu.symptoms is None else _faults_in(gpu.symptoms)
        if gpu.symptoms is not None and self._is_slow(gpu, now):
            found.append(("suspect", f"{_slowdown(gpu.symptoms)} for more than {self._throttled_s:g} s"))
        return max(found, key=lambda fault: _WORSE[fault[0]], default=None)

    def _is_slow(self, gpu: _Gpu, now: float) -> bool:
        """Whether the GPU is slowed down for so long that it counts as a fault."""
        return gpu.slow_since is not None and now - gpu.slow_since >= self._throttled_s


def _faults_in(symptoms: Symptoms) -> list[tuple[GpuState, str]]:
    if symptoms.lost:
        return [("unhealthy", f"NVML: {symptoms.lost}")]
    if symptoms.silent:
        return [("suspect", symptoms.silent)]
    found: list[tuple[GpuState, str]] = []
    if symptoms.recovery in RECOVERY:
        found.append(RECOVERY[symptoms.recovery])
    if symptoms.rows_failed:
        found.append(("unhealthy", "a memory row could not be remapped; the GPU should be replaced"))
    if symptoms.rows_pending:
        # NVIDIA's A100 memory error guide: running work is safe. The GPU takes no new slices, so that it can be reset.
        found.append(("suspect", "a memory row waits for a GPU reset to be remapped"))
    if symptoms.ecc_volatile and not symptoms.remaps_rows:
        found.append(("unhealthy", f"{symptoms.ecc_volatile} uncorrectable ECC errors since the driver was loaded"))
    if symptoms.fabric_down:
        found.append(("suspect", "its NVLink fabric is not up; is the fabric manager running?"))
    return found


def _slowdown(symptoms: Symptoms) -> str:
    """What slows the GPU down, or ""."""
    found = [
        word
        for bit, word in ((HOT, "too hot"), (POWER_BRAKE, "slowed down by the power brake"))
        if symptoms.clock_reasons & bit
    ]
    if symptoms.pcie_width and symptoms.pcie_width < symptoms.max_pcie_width:
        found.append(f"PCIe link of width {symptoms.pcie_width} where {symptoms.max_pcie_width} is possible")
    if symptoms.busy and symptoms.pcie_generation and symptoms.pcie_generation < symptoms.max_pcie_generation:
        # An idle link is slowed down to save power, even between two kernels.
        found.append(
            f"PCIe link of generation {symptoms.pcie_generation} where {symptoms.max_pcie_generation} is possible"
        )
    return " and ".join(found)
