"""docs/examples/plugin, built and installed by the commands of its README, and used by Kerf.

Everything runs in processes of its own: nothing of the package is seen by other tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "plugin"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the package is installed."""
    source, target = tmp_path_factory.mktemp("plugin") / "plugin", tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE, source)
    (commands,) = re.findall(r"```\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    build, install, _ = (line.removeprefix("python ").split() for line in commands.splitlines())
    alone = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for command in (build, [*install, "--target", str(target)]):
        subprocess.run(
            [sys.executable, *command], cwd=source, env=os.environ | alone, check=True, capture_output=True, text=True
        )
    return target


def run(package: Path, *arguments: str, **environment: str) -> str:
    """The output of a process that has Kerf, this repository's tests and the package."""
    paths = os.pathsep.join(map(str, (ROOT, package)))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PLACEMENT = """
from shared.book.states import pod_state
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import why

placement = Placement(policy="binpack").nodes("a", "b", gpus=2)

def label(name, **labels):
    placement.facts(build.node(name, labels={f"example.com/{key}": value for key, value in labels.items()}))

def place(name="p", **annotations):
    notes = {key.replace("__", "/").replace("_", "."): value for key, value in annotations.items()}
    return placement.core.engine.decide(pod_state(build.gpu_pod(name, gpus=1, annotations=notes)))
"""


def test_its_five_plugins_are_found(package: Path) -> None:
    found = [line.split(" = ")[0] for line in run(package, "-m", "shared.plugins").splitlines()]
    assert found == [
        "kerf.filters rack",
        "kerf.scores green-power",
        "kerf.policies highest-index",
        "kerf.dialects percent",
        "kerf.strategies polite",
    ]


def test_without_it_there_are_none(package: Path) -> None:
    assert run(ROOT, "-m", "shared.plugins") == ""


def test_its_filter_excludes_a_node_and_why_says_its_sentence(package: Path) -> None:
    run(
        package,
        "-c",
        PLACEMENT
        + """
label("a", rack="r1")
label("b", rack="r2")
assert (place(example_com__rack="r2").node, place(example_com__rack="r2").feasible_nodes) == ("b", 1)
assert place(example_com__rack="r3") is None
assert place().feasible_nodes == 2
placement.facts(build.gpu_pod("w", gpus=1, annotations={"example.com/rack": "r3"}))
told = why(placement, "w")
said = {reason.sentence for node in told.nodes for reason in node.reasons}
assert said == {"the pod wants rack r3, the node is in rack r1", "the pod wants rack r3, the node is in rack r2"}, said
assert [reason.code for reason in told.summary] == ["example-rack"]
""",
    )


def test_its_score_changes_the_choice_of_a_node(package: Path) -> None:
    run(
        package,
        "-c",
        PLACEMENT
        + """
assert place().node == "a"
label("b", power="green")
assert place().node == "b"
label("b")
assert place().node == "a"
""",
    )


def test_its_policy_is_named_by_a_pod_and_chooses_another_gpu(package: Path) -> None:
    run(
        package,
        "-c",
        PLACEMENT
        + """
def index(found):
    (share,) = found.containers["c"].gpus
    return placement.core.book.nodes[found.node].by_uuid[share.uuid].index

assert (place().policy, index(place())) == ("binpack", 0)
found = place(kerf_dev__policy="highest-index")
assert (found.policy, index(found)) == ("highest-index", 1)
from services.placement.service import Config
assert Config(policy="highest-index").policy == "highest-index"
""",
    )


def test_its_dialect_translates_a_pod(package: Path) -> None:
    run(
        package,
        "-c",
        """
from services.admission.core import Policy, Request, review
limits = {"limits": {"example.com/gpu-percent": "30"}}
pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": limits}]}}
allowed = review(Request(pod=pod), Policy())
assert allowed.dialect == "percent", allowed
text = str(allowed.patches)
assert "'kerf.dev/gpu-compute': '30'" in text and "kerf.dev/slot" in text, text
""",
    )


def test_its_strategy_is_offered_chosen_and_carried_out(package: Path, host: Path) -> None:
    run(
        package,
        "-c",
        """
import asyncio, sys
from pathlib import Path
from shared.book.shares import strategy_for
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.provision import provision
from shared.model.request import GpuAsk
from tests.support.enforcement import offered
from tests.support.fake_kubelet import FakeKubelet
from tests.support import enforcement
from tests.support.kubelet_agent import agent, environment
from tests.support.waiting import eventually
from tests.unit.services.node_agent.devices.machine import load

host = Path(sys.argv[1])
load()
(host / "nvml").write_text(enforcement.NVML)

async def body():
    kubelet = FakeKubelet(host / "kubelet")
    await kubelet.start()
    async with EmbeddedServer() as nats, await NatsBus.connect(nats.url) as bus:
        await provision(bus)
        async with agent(nats, host):
            found = await eventually(lambda: with_polite(bus))
            assert strategy_for(GpuAsk(count=1, memory_mib=64), "soft", found) == "polite"
            name = await enforcement.started(bus, kubelet, "p", strategy="polite", compute_milli=0)
            told = environment(host, name)
            assert (told["KERF_STRATEGY"], told["EXAMPLE_BE_POLITE"]) == ("polite", "64")
    await kubelet.stop()

async def with_polite(bus):
    found = await offered(bus)
    return found if "polite" in found else ()

asyncio.run(body())
""",
        str(host),
        KERF_FAKE_NVML_STATE=str(host / "nvml"),
    )


def test_a_service_logs_what_it_has_loaded(package: Path) -> None:
    out = run(
        package,
        "-c",
        """
import asyncio
from services.placement.service import Placement
from shared.bus.embedded import EmbeddedServer
from shared.service import running
from shared.telemetry import configure_logging

async def body():
    async with EmbeddedServer() as nats, running(Placement, bus_url=nats.url):
        from shared.plugins import loaded
        for plugin in loaded():
            print(plugin.group, plugin.name, plugin.package)

asyncio.run(body())
""",
    )
    loaded = [line for line in out.splitlines() if line.startswith("kerf.")]
    assert loaded == [
        "kerf.filters rack kerf-example 0.1.0",
        "kerf.policies highest-index kerf-example 0.1.0",
        "kerf.scores green-power kerf-example 0.1.0",
        "kerf.strategies polite kerf-example 0.1.0",
    ]
    assert out.count("plugin_loaded") == 4


def test_a_service_does_not_start_with_a_package_that_it_cannot_use(tmp_path: Path) -> None:
    info = tmp_path / "kerf_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kerf-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kerf.dialects]\nodd = kerf_broken:Odd\n")
    done = subprocess.run(
        [sys.executable, "-m", "services.admission"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    said = done.stdout + done.stderr
    assert "plugin_unusable" in said
    assert "plug-in 'odd' of kerf-broken 1.0 (entry point kerf.dialects): kerf_broken:Odd cannot be imported" in said
