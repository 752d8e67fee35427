"""How long a pod has to end."""

from __future__ import annotations

from math import inf

import msgspec
import pytest

from shared.model.life import DEFAULT_GRACE_S, UNTOLD, disruption_note, grace_s, lost_s, read_life
from shared.model.request import RequestError
from tests.support import build


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [(None, None, DEFAULT_GRACE_S), (600, None, 600), (0, None, 0), (-1, None, 0), (600, 5, 5), (5, 600, 600)],
)
def test_its_own_grace_period_or_the_one_that_it_was_deleted_with(
    own: int | None, given: int | None, expected: int
) -> None:
    pod = build.pod(termination_grace_period_seconds=own)
    deleted = msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, deletion_grace_period_seconds=given)
    )
    assert grace_s(deleted) == expected


@pytest.mark.parametrize(("cost", "expected"), [(None, 100), (0, 0), (50, 50), (3_700, 3_700), (999_999_999, 3_700)])
def test_a_restart_costs_at_most_the_run_time_and_a_start(cost: int | None, expected: int) -> None:
    assert lost_s(cost, 100) == expected


def test_a_pod_may_say_that_it_is_never_preempted() -> None:
    assert not read_life(build.pod(annotations={"kerf.dev/preemptible": "false"})).preemptible
    assert read_life(build.pod(annotations={"kerf.dev/preemptible": "true"})) == UNTOLD


@pytest.mark.parametrize(
    "annotations",
    [{"kerf.dev/preemptible": "never"}, {"kerf.dev/preemptible": "false", "kerf.dev/tier": "opportunistic"}],
)
def test_a_contradiction_on_preemption_is_refused(annotations: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"kerf\.dev/preemptible") as refused:
        read_life(build.pod(annotations=annotations))
    assert "all others" not in str(refused.value), "opportunistic pods are preempted by priority, as others"


@pytest.mark.parametrize(("notes", "seconds"), [
    ({"karpenter.sh/do-not-disrupt": "true"}, inf),
    ({"karpenter.sh/do-not-disrupt": "90m"}, 5400.0),
    ({"karpenter.sh/do-not-disrupt": "1h30m0.5s"}, 5400.5),
    ({"karpenter.sh/do-not-disrupt": "false"}, 0.0),
    ({"karpenter.sh/do-not-disrupt": "soon"}, 0.0),
    ({"karpenter.sh/do-not-disrupt": "1.2.3m"}, 0.0),
    ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}, inf),
    ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}, 0.0),
    ({}, 0.0),
])  # fmt: skip
def test_what_autoscalers_must_not_disrupt_is_not_migrated(notes: dict[str, str], seconds: float) -> None:
    assert read_life(build.pod(annotations=notes)).stays_s == seconds


@pytest.mark.parametrize(
    ("notes", "written"),
    [
        ({}, {}),
        ({"kerf.dev/min-runtime": "1h30m"}, {"karpenter.sh/do-not-disrupt": "5400s"}),
        ({"kerf.dev/preemptible": "false"}, {"karpenter.sh/do-not-disrupt": "true"}),
        ({"kerf.dev/min-runtime": "1h", "karpenter.sh/do-not-disrupt": "2h"}, {}),
    ],
    ids=["says nothing", "a minimum run time", "not preemptible", "says it itself"],
)
def test_karpenter_is_told_for_how_long_a_pod_must_stay(notes: dict[str, str], written: dict[str, str]) -> None:
    assert disruption_note(build.pod(annotations=notes)) == written


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("90", 90), ("none", inf)])
def test_a_program_may_say_how_long_its_watchdog_bears_a_suspension(text: str, seconds: float) -> None:
    assert read_life(build.pod(annotations={"kerf.dev/watchdog": text})).watchdog_s == seconds


@pytest.mark.parametrize(("text", "says"), [("never", "or none"), ("0", r"kerf\.dev/turns: never"), ("-1", "or none")])
def test_a_watchdog_that_is_no_duration_is_refused(text: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read_life(build.pod(annotations={"kerf.dev/watchdog": text}))
