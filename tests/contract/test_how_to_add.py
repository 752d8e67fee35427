"""Adds one of each kind to a copy of the tree, by editing exactly the files that CONTRIBUTING.md names.

The check of each kind runs in another process, in which the copy is imported instead of this tree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Edit = Callable[[str], str]


def new(text: str) -> Edit:
    """A file that is not there yet."""

    def write(before: str) -> str:
        assert before == "", "the file is there already"
        return text.lstrip("\n")

    return write


def changed(*pairs: tuple[str, str]) -> Edit:
    """Replaces texts that stand there once."""

    def replace(text: str) -> str:
        for old, instead in pairs:
            assert text.count(old) == 1, f"{old!r} stands there {text.count(old)} times"
            text = text.replace(old, instead)
        return text

    return replace


def first_line(line: str) -> tuple[str, str]:
    """An import, after the one of every module."""
    return "from __future__ import annotations\n", f"from __future__ import annotations\n\n{line}\n"


FILTER = """
from __future__ import annotations

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.scheduling.filters.base import Check, Filter


class EvenNames(Filter):
    name = "even-names"
    scope = "node"
    reads = ("pod.spec.priority",)
    reads_node = ("name",)

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        if not pod.pod.spec.priority:
            return None

        def check(node: NodeState) -> Reason | None:
            return None if len(node.name) % 2 == 0 else Reason(code="odd", sentence=f"{node.name} has an odd name")

        return check
"""

SCORE = """
from __future__ import annotations

from services.placement.scores.base import NodeScore, Rate
from shared.book.book import Book
from shared.book.states import PodState


class LongestName(NodeScore):
    name = "longest-name"
    weight = 10_000
    reads_node = ("name",)

    def prepare(self, pod: PodState, book: Book) -> Rate | None:
        return lambda node: len(node.name)
"""

POLICY = """
from __future__ import annotations

from services.placement.policies.spread import Spread


class LastGpu(Spread):
    name = "last-gpu"

    def order(self, pod, ask, fitting, node):
        return sorted(fitting, key=lambda room: -room.index)
"""

DIALECT = """
from __future__ import annotations

from services.admission.dialects.base import Json, Manifest, Setting, Translation, amount, containers

RESOURCE = "example.com/gpu"


class Example:
    name = "example"
    resources = frozenset({RESOURCE})
    schedulers: tuple[str, ...] = ()

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:
        return RESOURCE in manifest.named

    def translate(self, pod: Json, setting: Setting) -> Translation:
        found = {place: {"kerf.dev/gpu": str(amount(one, RESOURCE))} for place, one in containers(pod)}
        return Translation(amounts=found, removed=self.resources)
"""

DRIVER = """
from __future__ import annotations

from services.node_agent.strategies.exclusive import Exclusive


class Polite(Exclusive):
    pass
"""

EVENT = '''
class ClockSet(Event, frozen=True):
    """A node's clock was set."""

    ENTITY: ClassVar[str] = "clock"
    VERB: ClassVar[str] = "set"
    node: str
    by_ms: int


EVENTS: tuple[type[Event], ...] = (
    ClockSet,
'''

COMMAND = '''
"""`kerf count`: how many pods placement knows."""

from __future__ import annotations

import argparse

from cli.ask import ask, connected
from cli.output import print_json
from shared.contracts.queries import COUNT, CountAnswer, CountQuery


async def run(args: argparse.Namespace) -> None:
    async with connected(args.nats) as bus:
        print_json(await ask(bus, COUNT.subject, CountQuery(), CountAnswer))
'''

QUERY = '''
class CountQuery(Message, frozen=True):
    """How many pods does placement know?"""


class CountAnswer(Message, frozen=True):
    pods: int = 0
    leader: bool = False
    error: str = ""


COUNT = Query(
    name="count",
    question=CountQuery,
    answer=CountAnswer,
    receivers="placement",
    description="How many pods are known.",
    examples=(CountQuery(), CountAnswer(pods=3)),
)

QUERIES: tuple[Query, ...] = (COUNT, '''

ADDED: dict[str, dict[str, Edit]] = {
    "a filter": {
        "shared/scheduling/filters/even_names.py": new(FILTER),
        "shared/scheduling/filters/__init__.py": changed(
            first_line("from shared.scheduling.filters.even_names import EvenNames"),
            ("    Taints(),\n", "    Taints(),\n    EvenNames(),\n"),
        ),
    },
    "a score": {
        "services/placement/scores/longest_name.py": new(SCORE),
        "services/placement/scores/__init__.py": changed(
            first_line("from services.placement.scores.longest_name import LongestName"),
            ("    PreferredNode(),\n", "    PreferredNode(),\n    LongestName(),\n"),
        ),
    },
    "a policy": {
        "services/placement/policies/last_gpu.py": new(POLICY),
        "shared/model/policies.py": changed(
            (
                "BUILT_IN: dict[str, str] = {\n",
                'BUILT_IN: dict[str, str] = {\n    "last-gpu": "services.placement.policies.last_gpu:LastGpu",\n',
            )
        ),
        "k8s/chart/templates/21-policy-request.yaml": changed(
            ("'spread', 'least-loaded-nearest']", "'spread', 'least-loaded-nearest', 'last-gpu']")
        ),
    },
    "a dialect": {
        "services/admission/dialects/example.py": new(DIALECT),
        "services/admission/dialects/__init__.py": changed(
            first_line("from services.admission.dialects.example import Example"),
            ("    Gpushare(),\n", "    Gpushare(),\n    Example(),\n"),
        ),
        "k8s/chart/templates/24-webhook.yaml": changed(
            ("'aliyun.com/gpu-mem', 'aliyun.com/gpu-count'", "'aliyun.com/gpu-mem', 'example.com/gpu'")
        ),
    },
    "a strategy": {
        "services/node_agent/strategies/polite.py": new(DRIVER),
        "shared/model/strategies.py": changed(
            (
                "BUILT_IN: tuple[Strategy, ...] = (\n",
                "BUILT_IN: tuple[Strategy, ...] = (\n"
                '    Strategy(name="polite", promise="firm", preference=100, proof="own",\n'
                '             driver="services.node_agent.strategies.polite:Polite"),\n',
            )
        ),
    },
    "a public event": {
        "shared/contracts/events.py": changed(("\nEVENTS: tuple[type[Event], ...] = (\n", EVENT)),
        "shared/contracts/registry.py": changed(
            ('    _event(e.TermTaken, "node", "placement"),\n', '    _event(e.TermTaken, "node", "placement"),\n'
             '    _event(e.ClockSet, "node", "node_agent"),\n')
        ),
        "shared/contracts/examples.py": changed(
            ("    # log\n", "    e.ClockSet(node=NODE, by_ms=-40),\n    # log\n")
        ),
    },
    "a command with its query": {
        "cli/count.py": new(COMMAND),
        "cli/__main__.py": changed(
            ('    add("queues", ', '    add("count", "count", "how many pods placement knows")\n    add("queues", ')
        ),
        "shared/contracts/queries.py": changed(("QUERIES: tuple[Query, ...] = (", QUERY.lstrip("\n"))),
        "services/placement/queries/reader.py": changed(
            ("    GRANT,\n", "    COUNT,\n    GRANT,\n    CountAnswer,\n"),
            (
                "ANSWERS: Answers = {\n",
                "ANSWERS: Answers = {\n"
                "    COUNT.name: lambda core, _, __: CountAnswer(pods=len(core.book.pods), leader=True),\n",
            ),
        ),
    },
    "a setting": {
        "services/placement/config.py": changed(
            ("    max_holds: Count = 256\n", "    patience_s: Seconds = 5\n    max_holds: Count = 256\n")
        ),
        "docs/operators.md": changed(
            ("| `max_holds` | 256 |", "| `patience_s` | 5 | how patient it is |\n| `max_holds` | 256 |")
        ),
    },
}  # fmt: skip

NODES = """
from shared.book.book import Book
from shared.book.states import pod_state
from services.placement.engine.engine import Engine
from tests.support import build
from tests.support.harness.placement import Placement

placement = Placement(policy="binpack").nodes("odd", "even", gpus=2)
engine, book = placement.core.engine, placement.core.book
pod = build.gpu_pod("p", gpus=1, priority=5)
"""

CHECKS: dict[str, str] = {
    "a filter": NODES
    + """
from services.placement.explain.diagnosis import Diagnosis
assert engine.decide(pod_state(pod)).node == "even"
assert engine.decide(pod_state(build.gpu_pod("q", gpus=1))).feasible_nodes == 2, "of another priority"
(reason,) = Diagnosis(pod_state(pod), book).of(book.nodes["odd"])
assert reason.sentence == "odd has an odd name"
""",
    "a score": NODES
    + """
assert engine.decide(pod_state(pod)).node == "even", "its name is longer"
""",
    "a policy": NODES
    + """
pod = build.gpu_pod("p", gpus=1, annotations={"kerf.dev/policy": "last-gpu"})
place = engine.decide(pod_state(pod))
(share,) = place.containers["c"].gpus
assert (place.policy, book.nodes[place.node].by_uuid[share.uuid].index) == ("last-gpu", 1)
""",
    "a dialect": """
from services.admission.core import Policy, Request, review
limits = {"limits": {"example.com/gpu": "2"}}
pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": limits}]}}
allowed = review(Request(pod=pod), Policy())
assert allowed.dialect == "example", allowed
assert any("kerf.dev/gpu" in str(operation) for operation in allowed.patches)
""",
    "a strategy": """
from pathlib import Path
from services.node_agent.strategies.base import NodeTools, Offer
from services.node_agent.strategies.drivers import make_drivers
from services.node_agent.strategies.polite import Polite
from shared.book.shares import strategy_for
from shared.contracts.base import decode
from shared.model.gpu import Inventory
from shared.model.request import GpuAsk
inventory = decode(b'{"node":"n","boot_id":"b","strategies":["exclusive","interposer","polite"]}', Inventory)
assert strategy_for(GpuAsk(count=1, memory_mib=1024, compute_milli=100), "firm", inventory.strategies) == "polite"
tools = NodeTools(registry=None, library=Path("l"), offer=lambda: Offer(ok=True), clock=lambda: 0)
assert isinstance(make_drivers(tools)["polite"], Polite)
assert '"polite"' in Path("schemas/Inventory.json").read_text()
""",
    "a public event": """
import json
from pathlib import Path
assert json.loads(Path("schemas/examples/v1/ClockSet.json").read_text())["by_ms"] == -40
channels = json.loads(Path("schemas/asyncapi.json").read_text())["channels"]
assert channels["clock.set"]["address"].endswith(".clock.set.node.{node}")
assert '"kerf.v1.event.clock.>"' in Path("k8s/nats.conf").read_text(), "agents may publish it"
""",
    "a command with its query": """
import asyncio, json, subprocess, sys
from pathlib import Path
from services.placement.service import Placement
from shared.bus.embedded import EmbeddedServer
from shared.service import running

assert Path("k8s/nats.conf").read_text().count('"kerf.v1.query.count"') == 3, "placement, reader, operator"
assert "how many pods placement knows" in subprocess.check_output([sys.executable, "-m", "cli", "--help"], text=True)

async def body():
    async with EmbeddedServer() as server, running(Placement, bus_url=server.url):
        asked = [sys.executable, "-m", "cli", "count", "--nats", server.url]
        process = await asyncio.create_subprocess_exec(*asked, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert json.loads(out)["leader"] is True

asyncio.run(body())
""",
    "a setting": """
import os
from services.placement.service import Config
from shared.service import read_config
os.environ["KERF_PLACEMENT_PATIENCE_S"] = "7"
config, _ = read_config("placement", Config)
assert config.patience_s == 7
""",
}


ADDED_NAMES = "even_names|longest_name|last_gpu|example|polite|count"


def table() -> dict[str, tuple[int, list[str]]]:
    """By what is added: the number and the files of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (an? [^|]+?) \| (\d+) \| (.*) \|$", text, re.MULTILINE)
    return {what: (int(number), re.findall(r"`([^`]+/[^`]+)`", which)) for what, number, which in rows}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The tree without tests. Compiled loops come along: their age is that of their source."""
    for folder in ("services", "shared", "shadow", "cli", "schemas", "k8s"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "docs").mkdir()
    shutil.copy2(ROOT / "docs" / "operators.md", tmp_path / "docs")
    return tmp_path


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_table_names_what_is_added_here() -> None:
    assert table().keys() == ADDED.keys() == CHECKS.keys()


@pytest.mark.parametrize("what", list(ADDED))
def test_the_files_of_the_table_are_enough(copy: Path, what: str) -> None:
    number, files = table()[what]
    edited = set(ADDED[what])
    assert len({path for path in edited if not path.startswith("docs/")}) == number
    named = {re.sub(rf"(?<=/)({ADDED_NAMES})(?=\.py)", "<name>", path) for path in edited}
    assert named == set(files)
    before = run(copy, "-c", CHECKS[what])
    assert before.returncode, "it works without anything being added"
    for path, edit in ADDED[what].items():
        place = copy / path
        place.write_text(edit(place.read_text() if place.exists() else ""))
    generated = run(copy, "-m", "shared.contracts.generate")
    assert generated.returncode == 0, generated.stderr
    checked = run(copy, "-c", CHECKS[what])
    assert checked.returncode == 0, checked.stderr
