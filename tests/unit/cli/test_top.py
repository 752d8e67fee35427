"""What `kerf top` shows of suspended pods."""

from __future__ import annotations

import pytest

from cli import top
from shared.contracts.queries import StatusAnswer, SuspendedPod


def test_suspended_pods_are_listed_with_whose_turn_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    waits = SuspendedPod(
        namespace="team", name="long", node="n", action="checkpoint", since="2026-11-20T10:00:00Z", for_s=420,
        turn_of="team/short", gpu_seconds=7_200, level=2,
    )  # fmt: skip
    runs = SuspendedPod(namespace="team", name="half", node="n", action="throttle", gpu_seconds=3_600)
    top.show_suspended(StatusAnswer(pods_suspended=3, suspended=(waits, runs), on_host_mib=40_960, host_mib=81_920))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "3 pods; hosts hold 40.0 of 80.0 GiB" in " ".join(lines[0])
    assert lines[2] == ["team/long", "n", "checkpoint", "420", "s", "team/short", "2.00", "2"]
    assert lines[3] == ["team/half", "n", "throttle", "1.00"]
    assert lines[4] == ["and", "1", "more"]


def test_nothing_is_said_where_no_pod_is_suspended(capsys: pytest.CaptureFixture[str]) -> None:
    top.show_suspended(StatusAnswer())
    assert capsys.readouterr().out == ""
