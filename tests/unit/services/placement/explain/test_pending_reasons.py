"""What is reported of pods that wait."""

from __future__ import annotations

import pytest

from services.placement import messages as m
from shared.contracts.commands import ReportPending
from shared.contracts.envelope import wrap
from shared.contracts.events import PlacementRejected
from tests.support import build
from tests.support.harness.placement import Placement, only


@pytest.mark.parametrize(
    "notes", [{"kerf.dev/gang-timeout": "\x1b" * 200_000}, {"kerf.dev/gpu-model": "H" * 4096}], ids=["refused", "waits"]
)
def test_a_long_annotation_makes_no_report_that_does_not_fit(notes: dict[str, str]) -> None:
    """An error repeats the annotation, up to 256 KiB, with four characters for each that is not printable."""
    placement = Placement().nodes("n")
    placement.facts(build.gpu_pod("p", gpus=1, annotations=notes))
    placement.tick()
    said = placement.commands
    (event,) = [one.event for one in only(said, m.Publish) if isinstance(one.event, PlacementRejected)]
    (report,) = [p for one in only(said, m.SendPatches) for p in one.patches if isinstance(p, ReportPending)]
    assert len(wrap(event, source="/t", now_s=1)[1]) < 50_000
    assert len(report.message) < 4_100
    assert report.message.endswith(event.explanation.sentence[-2_000:])
