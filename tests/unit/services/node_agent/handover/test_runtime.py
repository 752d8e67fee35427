"""How the container runtime's answers are judged."""

from __future__ import annotations

from typing import Any

import pytest

from services.node_agent.handover.runtime import Runtime, exposure, judge_cdi

DIRS = ["/etc/cdi", "/var/run/cdi"]


def containerd(version: str, **config: object) -> Runtime:
    return Runtime(name="containerd", version=version, config={"cdiSpecDirs": DIRS} | config)


@pytest.mark.parametrize(
    ("runtime", "cdi", "word"),
    [
        (containerd("v2.4.2"), "yes", ""),
        (containerd("2.0.1", enableCDI=True), "yes", ""),
        (containerd("v2.1.0", enableCDI=False), "no", "enable_cdi = true"),
        (containerd("1.7.24", enableCDI=True), "yes", ""),
        (containerd("1.7.24~ds1", enableCDI=False), "no", "enable_cdi = true"),
        (containerd("1.7.24"), "no", "enable_cdi = true"),
        (Runtime(name="containerd", version="1.7.24"), "unknown", "does not report"),
        (containerd("1.6.20~ds1"), "no", "upgrade to containerd 2"),
        (containerd("v2.4.2", cdiSpecDirs=["/etc/cdi"]), "no", "cdi_dir is /run/cdi"),
        (containerd("v2.4.2", cdiSpecDirs=[]), "no", "no directory"),
        (Runtime(name="cri-o", version="1.34.0"), "yes", ""),
        (Runtime(name="cri-o", version="1.22.5"), "no", "CRI-O 1.23"),
        (Runtime(name="docker", version="29.0"), "unknown", "not known"),
        (Runtime(name="containerd", version="<unknown>"), "unknown", "not known"),
        (Runtime(name="containerd", version="1." + "9" * 5000), "yes", ""),
    ],
)
def test_cdi_support_is_judged_by_runtime_and_version(runtime: Runtime, cdi: str, word: str) -> None:
    found = judge_cdi(runtime, "/run/cdi")
    assert found.cdi == cdi
    assert word in found.sentence
    assert bool(found.sentence) is (cdi != "yes")


def test_var_run_and_run_are_the_same_directory() -> None:
    assert judge_cdi(containerd("2.4.2", cdiSpecDirs=["/run/cdi/"]), "/var/run/cdi").cdi == "yes"


BY_NAME = containerd("2.4.2", containerd={"defaultRuntimeName": "nvidia", "runtimes": {"nvidia": {"options": {}}}})
BY_BINARY = containerd(
    "2.4.2",
    containerd={
        "defaultRuntimeName": "gpu",
        "runtimes": {"gpu": {"options": {"BinaryName": "/usr/bin/nvidia-container-runtime"}}},
    },
)
PLAIN = containerd("2.4.2", containerd={"defaultRuntimeName": "runc", "runtimes": {"runc": {}, "nvidia": {}}})
CLOSED = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"


@pytest.mark.parametrize(
    ("runtime", "config", "exposed"),
    [
        (BY_NAME, "", True), (BY_BINARY, "", True), (PLAIN, "", False), (BY_NAME, CLOSED, False),
        (BY_NAME, CLOSED.replace("false", "true"), True), (BY_NAME, "this is = no [toml", True),
        (BY_NAME, f"x = {'9' * 5000}", True), (BY_NAME, f"x = {'[' * 5000}", True),
        (Runtime(name="cri-o", version="1.34.0"), "", False),
    ],
)  # fmt: skip
def test_the_nvidia_default_runtime_exposes_gpus_to_all_pods(runtime: Runtime, config: str, exposed: bool) -> None:
    assert bool(exposure(runtime, config)) is exposed


@pytest.mark.parametrize(
    "config",
    [
        {"containerd": []},
        {"containerd": {"defaultRuntimeName": "nvidia", "runtimes": "x"}},
        {"containerd": {"defaultRuntimeName": "x", "runtimes": {"x": {"options": 5}}}},
        {"cdiSpecDirs": 5},
        {"cdiSpecDirs": "/etc/cdi"},
    ],
)
def test_a_configuration_of_another_form_says_nothing(config: dict[str, Any]) -> None:
    runtime = Runtime(name="containerd", version="2.1.4", config=config)
    assert judge_cdi(runtime, "/var/run/cdi").cdi == "yes"
    assert bool(exposure(runtime, "")) is (config.get("containerd", {}) != [] and "nvidia" in str(config))


def test_directories_that_are_no_text_are_not_kerfs() -> None:
    runtime = Runtime(name="containerd", version="2.1.4", config={"cdiSpecDirs": [None, {}]})
    assert judge_cdi(runtime, "/var/run/cdi").cdi == "no"
