"""nvidia.com/mig-<profile> translated to Kerf's resources."""

from __future__ import annotations

from typing import Any

from services.admission.core import review
from services.admission.dialects import Setting
from services.admission.dialects.nvidia_mig import NvidiaMig
from services.admission.messages import Allowed, Policy, Refused, Request

TAKEN_OVER = Policy(setting=Setting(plain_nvidia=True))


def pod(**limits: str) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}


def test_instances_are_translated_by_name() -> None:
    made = NvidiaMig().translate(pod(**{"nvidia.com/mig-1g.10gb": "2"}), Setting(plain_nvidia=True))
    assert made.amounts == {("containers", 0): {"kerf.dev/mig-1g.10gb": "2"}}
    assert "nvidia.com/mig-1g.10gb" in made.removed


def test_mig_resources_are_taken_over_only_where_plain_nvidia_is() -> None:
    manifest = pod(**{"nvidia.com/mig-1g.5gb.me": "1"})
    taken = review(Request(pod=manifest), TAKEN_OVER)
    assert isinstance(taken, Allowed)
    assert taken.dialect == "nvidia-mig"
    assert review(Request(pod=manifest), Policy()) == Allowed()


def test_kerfs_mig_resources_get_a_slot_and_the_scheduler() -> None:
    verdict = review(Request(pod=pod(**{"kerf.dev/mig-1g.10gb": "1"})), Policy())
    assert isinstance(verdict, Allowed)
    assert any("kerf.dev~1slot" in str(patch) or "kerf.dev/slot" in str(patch) for patch in verdict.patches)


def test_instances_beside_whole_gpus_are_refused() -> None:
    verdict = review(Request(pod=pod(**{"nvidia.com/mig-1g.10gb": "1", "nvidia.com/gpu": "1"})), TAKEN_OVER)
    assert isinstance(verdict, Refused)
    assert verdict.code == "mixed-dialects"
    assert isinstance(verdict := review(Request(pod=pod(**{"kerf.dev/mig-1g.11gb": "1"})), Policy()), Refused)
    assert verdict.code == "unknown-mig-profile"
