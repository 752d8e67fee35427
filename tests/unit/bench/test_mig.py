"""The MIG benchmark distinguishes the policies, and the same seed gives the same figures."""

from __future__ import annotations

import pytest

from bench.mig import churn, fill, make_kinds


def test_the_default_policy_gets_more_out_of_mig_gpus_than_first_fit_does() -> None:
    ours, first_fit = fill("kerf", "instances", 1), fill("binpack", "instances", 1)
    assert ours.allocation_percent > first_fit.allocation_percent
    assert ours.refused_percent["1g/1"] <= ours.refused_percent["7g/8"], "small instances always find a hole sooner"
    assert fill("kerf", "instances", 1) == ours


@pytest.mark.parametrize("mix", ["instances", "beside"])
def test_with_little_load_no_pod_is_refused(mix: str) -> None:
    run = churn("kerf", mix, 0.1, 1)
    assert set(run.refused_percent.values()) == {0.0}
    assert 8 < run.allocation_percent < 12
    assert all(0 < kind.milli <= 1000 for kind in make_kinds(beside=mix == "beside"))
