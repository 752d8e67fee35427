"""What the preemptor knows about the memory use of slices."""

from __future__ import annotations

import pytest

from services.preemptor.memory_use import LOST_S, SEEN_FOR_S, MemoryUse
from services.preemptor.planning.actions.shrink import MIN_SPARE_MIB, Shrink
from services.preemptor.planning.candidate import Candidate, Last
from shared.book.demand import Demand
from shared.contracts.samples import GpuUse, SliceUse, UsageSample
from shared.model.grant import GpuShare


def sample(*counted: int | None) -> UsageSample:
    """A sample of one pod's slice on each GPU."""
    uses = [
        SliceUse(
            uid="a",
            namespace="team",
            name="a",
            memory_mib=9,
            granted_memory_mib=9,
            granted_compute_milli=0,
            counted_mib=mib,
        )
        for mib in counted
    ]
    return UsageSample(
        node="n", at_ms=0, gpus=tuple(GpuUse(uuid=f"g{i}", used_mib=9, slices=(use,)) for i, use in enumerate(uses))
    )


def heard(use: MemoryUse, *counted: int | None, since: float = 0.0, for_s: float, every_s: float = 10.0) -> float:
    now = since
    while now <= since + for_s:
        use.sampled(sample(*counted), now)
        now += every_s
    return now - every_s


def test_the_use_of_a_slice_is_known_after_a_while() -> None:
    use = MemoryUse()
    now = heard(use, 700, 900, for_s=SEEN_FOR_S - 10)
    assert use.max_used_mib("a", now) is None
    use.sampled(sample(700, 900), now + 10)
    assert use.max_used_mib("a", now + 10) == 900


def test_the_maximum_counts_until_it_is_long_ago() -> None:
    use = MemoryUse()
    heard(use, 5000, for_s=0)
    now = heard(use, 700, since=10, for_s=SEEN_FOR_S)
    assert use.max_used_mib("a", now) == 5000
    now = heard(use, 700, since=now + 10, for_s=SEEN_FOR_S)
    assert use.max_used_mib("a", now) == 700


def test_the_use_of_a_slice_without_recent_samples_is_unknown() -> None:
    use = MemoryUse()
    now = heard(use, 700, for_s=SEEN_FOR_S)
    assert use.max_used_mib("a", now + LOST_S + 1) is None
    heard(use, 700, since=now + LOST_S + 1, for_s=0)
    assert use.max_used_mib("a", now + LOST_S + 1) is None, "it may have been another one meanwhile"


def test_the_use_of_a_slice_without_counts_is_unknown() -> None:
    use = MemoryUse()
    assert use.max_used_mib("a", heard(use, None, for_s=SEEN_FOR_S)) is None


def test_slices_that_are_gone_are_forgotten() -> None:
    use = MemoryUse()
    now = heard(use, 700, for_s=SEEN_FOR_S)
    use.tick(now + LOST_S + 1)
    assert use.max_used_mib("a", now) is None


@pytest.mark.parametrize(
    ("uses_mib", "keeps_mib"), [(0, MIN_SPARE_MIB), (1000, 1000 + MIN_SPARE_MIB), (10_001, 10_001 + 1001)]
)
def test_a_shrunk_pod_keeps_spare_memory(uses_mib: int, keeps_mib: int) -> None:
    shares = tuple(GpuShare(node="n", uuid=f"g{i}", memory_mib=20_000, compute_milli=500) for i in range(2))
    candidate = Candidate(
        0, 900, 900, 500, Last(("", "a")), "a", "n", Demand(cpu_milli=5), shares, "g", uses_mib=uses_mib
    )
    shrunk = Shrink().apply(candidate)
    assert shrunk is not None
    assert (shrunk.keeps_mib, [(share.memory_mib, share.compute_milli) for share in shrunk.shares]) == (
        keeps_mib,
        [(20_000 - keeps_mib, 0)] * 2,
    )
    assert (shrunk.price_gpu_ms, shrunk.demand) == (0, Demand())


def test_a_pod_that_uses_all_its_memory_gives_up_none() -> None:
    shares = (GpuShare(node="n", uuid="g", memory_mib=20_000, compute_milli=500),)
    assert (
        Shrink().apply(Candidate(0, 900, 900, 500, Last(("", "a")), "a", "n", Demand(), shares, "g", uses_mib=19_900))
        is None
    )
