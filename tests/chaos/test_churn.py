"""A short churn, for every change; `make churn` is a long one."""

from __future__ import annotations

import pytest

from tests.chaos.churn.run import Options, churn
from tests.support.cluster import binaries_or_skip

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(420)]


async def test_the_auditor_finds_nothing_in_a_short_churn(record_property: pytest.RecordProperty) -> None:
    binaries_or_skip()
    story: list[str] = []
    report = await churn(Options(seconds=45.0, seed=3, pods=150), story.append)
    record_property("report", str(report))
    assert report.violations == (), "\n".join(story)
    assert min(report.faults, report.max_bound, report.looks) > 0
