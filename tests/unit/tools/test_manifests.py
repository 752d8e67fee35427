"""What the chart renders for values that are not the default ones."""

from __future__ import annotations

import subprocess

import pytest

from tools.manifests import template


@pytest.mark.parametrize(("mounts", "propagation"), [("true", "Bidirectional"), ("false", "HostToContainer")])
def test_one_value_sets_the_agents_mount_and_its_propagation(mounts: str, propagation: str) -> None:
    shown = template(f"--set=agent.mountSlices={mounts}", "--show-only=templates/35-node-agent.yaml")
    assert f'{{name: KERF_NODE_AGENT_MOUNT_SLICES, value: "{mounts}"}}' in shown
    assert f"{{name: run, mountPath: /run/kerf, mountPropagation: {propagation}}}" in shown


def test_the_setting_alone_is_refused_with_the_name_of_the_value(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        template("--set=settings.node_agent.mount_slices=false")
    assert "set agent.mountSlices instead" in capfd.readouterr().err
