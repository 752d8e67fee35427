"""Profiles of namespaces: what they fill in, what they refuse, and what they leave alone."""

from __future__ import annotations

from typing import Any

import pytest

from services.admission.core import review
from services.admission.dialects import Setting, Vgpu
from services.admission.messages import Allowed, Policy, Refused, Request
from services.admission.patch import apply
from services.admission.rules import typed
from services.admission.service import Config
from shared.model.request_reader import read_request
from tests.unit.services.admission.pods import container, limits_of, pod

DEBUG = Policy(profile="debug", plain_nvidia_namespaces=("*",))
TRAIN = Policy(profile="train", plain_nvidia_namespaces=("*",))
PERCENT = "kerf.dev/gpu-memory-percent"
FOREIGN_WHOLE: dict[str, dict[str, Any]] = {
    "kerf": pod(container(gpu="1")),
    "nvidia": pod(container(nvidia="1")),
    "gpushare": pod(container(count="1")),
    "hami": pod(container(nvidia="1"), schedulerName="hami-scheduler"),
    "volcano": pod(container(**{"volcano.sh/gpu-number": "1"})),
    "koordinator": pod(container(**{"koordinator.sh/gpu": "100"})),
    "gpu-manager": pod(container(**{"tencent.com/vcuda-core": "100"})),
}
FOREIGN_PART: dict[str, dict[str, Any]] = {
    "kerf": pod(container(memory="3Gi")),
    "gpushare": pod(container(mem="3")),
    "hami": pod(container(**{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"})),
    "kai": pod(container(), annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler"),
    "volcano": pod(container(**{"volcano.sh/vgpu-memory": "3000"})),
    "koordinator": pod(container(**{"koordinator.sh/gpu": "50"})),
    "gpu-manager": pod(container(**{"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"})),
    "nos": pod(container(**{"nvidia.com/gpu-10gb": "1"})),
    "nvidia-mig": pod(container(**{"nvidia.com/mig-1g.10gb": "1"})),
}


def admitted(manifest: dict[str, Any], policy: Policy) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The pod after its review, and the warnings. A second review changes nothing more."""
    answer = review(Request(pod=manifest), policy)
    assert isinstance(answer, Allowed), answer
    made = dict(apply(manifest, list(answer.patches)))
    again = review(Request(pod=made), policy)
    assert isinstance(again, Allowed)
    assert again.patches == (), again
    return made, answer.warnings


def refused(manifest: dict[str, Any], policy: Policy) -> str:
    answer = review(Request(pod=manifest), policy)
    assert isinstance(answer, Refused), answer
    return answer.code


@pytest.mark.parametrize("dialect", sorted(FOREIGN_WHOLE))
def test_in_debug_whole_gpus_without_an_amount_become_shares_in_every_dialect(dialect: str) -> None:
    made, warnings = admitted(FOREIGN_WHOLE[dialect], DEBUG)
    assert limits_of(made) == {"kerf.dev/gpu": "1", PERCENT: "25", "kerf.dev/slot": "1"}
    request = read_request(typed(made))
    assert request is not None
    (ask,) = request.asks.values()
    assert (ask.whole, ask.memory_milli, ask.compute_milli) == (False, 250, 0)
    assert made["metadata"]["annotations"]["kerf.dev/profile"] == f"debug: main {PERCENT}=25"
    assert any("profile debug: main" in warning for warning in warnings)


@pytest.mark.parametrize("dialect", sorted(FOREIGN_PART))
def test_in_debug_parts_stay_as_they_are(dialect: str) -> None:
    made, _ = admitted(FOREIGN_PART[dialect], DEBUG)
    plain, _ = admitted(FOREIGN_PART[dialect], Policy(plain_nvidia_namespaces=("*",)))
    assert made == plain


@pytest.mark.parametrize("dialect", sorted(FOREIGN_PART))
def test_in_train_a_part_is_refused_in_every_dialect(dialect: str) -> None:
    assert refused(FOREIGN_PART[dialect], TRAIN) == "profile-train"


@pytest.mark.parametrize("dialect", sorted(FOREIGN_WHOLE))
def test_in_train_whole_gpus_stay_as_they_are(dialect: str) -> None:
    made, warnings = admitted(FOREIGN_WHOLE[dialect], TRAIN)
    plain, _ = admitted(FOREIGN_WHOLE[dialect], Policy(plain_nvidia_namespaces=("*",)))
    assert (made, warnings) == (plain, ())


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({"gpu": "1"}, {"kerf.dev/isolation": "hard"}),
        ({"compute": "100"}, {}),
        ({PERCENT: "100"}, {}),
        ({"gpu": "2", PERCENT: "200", "compute": "50"}, {}),
        ({"gpu": "2", "compute": "200"}, {}),
    ],
)
def test_in_debug_what_names_all_of_a_gpu_is_refused(limits: dict[str, Any], annotations: dict[str, str]) -> None:
    assert refused(pod(container(**limits), annotations=annotations), DEBUG) == "profile-debug"


def test_several_gpus_and_containers_get_their_share_of_each() -> None:
    """An init container shares its app container's slice, so both are filled in alike."""
    app, side = container("app", gpu="4"), container("side", memory="1Gi")
    made, _ = admitted(pod(app, side, init=[container("load", gpu="2")]), DEBUG)
    assert limits_of(made) == {"kerf.dev/gpu": "4", PERCENT: "100", "kerf.dev/slot": "1"}
    assert limits_of(made, 1) == {"kerf.dev/gpu-memory": "1Gi", "kerf.dev/slot": "1"}
    assert limits_of(made, field="initContainers")[PERCENT] == "50"
    assert made["metadata"]["annotations"]["kerf.dev/profile"] == f"debug: app {PERCENT}=100, load {PERCENT}=50"


def test_the_share_is_the_installations() -> None:
    made, _ = admitted(pod(container(gpu="1")), Config(debug_memory_percent=40).policy(profile="debug"))
    assert limits_of(made)[PERCENT] == "40"


def test_namespaces_may_be_named_in_the_settings_too() -> None:
    policy = Config(debug_namespaces=("notebooks",), train_namespaces=("default",)).policy()
    assert refused(pod(container(memory="3Gi")), policy) == "profile-train"
    answer = review(Request(pod=pod(container(gpu="1")), namespace="notebooks"), policy)
    assert isinstance(answer, Allowed)
    assert answer.warnings
    assert isinstance(review(Request(pod=pod(container(memory="3Gi")), namespace="else"), policy), Allowed)


def test_a_namespace_has_one_profile() -> None:
    with pytest.raises(ValueError, match="both name ml"):
        Config(debug_namespaces=("ml",), train_namespaces=("ml", "x"))


def test_a_default_of_the_installation_counts_as_the_pods_own_amount() -> None:
    """HAMi's defaultMem makes a part of a GPU beside an amount of 0; docs/dialects.md says so, and train refuses it."""
    policy = Policy(profile="train", setting=Setting(hami=Vgpu(default_memory_mib=2000)))
    asks = container(nvidia="1")
    asks["resources"]["limits"]["nvidia.com/gpumem"] = "0"
    assert refused(pod(asks, schedulerName="hami-scheduler"), policy) == "profile-train"


@pytest.mark.parametrize("policy", [DEBUG, TRAIN])
def test_pods_without_gpus_are_not_changed(policy: Policy) -> None:
    assert review(Request(pod=pod(container())), policy) == Allowed()
