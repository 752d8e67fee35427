"""Rules and dashboards against what the services export, and promtool's opinion of all of it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.stack import stack
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.telemetry.metrics import FORMER_NAME
from tests.support.cluster import program_or_skip
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent
from tools.monitoring import levels, rules
from tools.monitoring.__main__ import FOLDER

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
BY_THE_OPERATOR: dict[str, set[str]] = {
    "kerf_certificate_not_after_seconds": {"name"},
    "kerf_certificate_not_before_seconds": {"name"},
    "kerf_operator_condition": {"type"},
    "kerf_operator_leading": set(),
}
"""Exported by services/operator, which has an API server beside it."""
OF_THE_SCRAPE = {"job", "instance"}
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"}
_WORDS = set(
    re.findall(
        r"\w+",
        """by without on ignoring group_left group_right and or unless offset bool sum max min count avg topk rate
        increase absent vector time clamp_min clamp_max histogram_quantile avg_over_time min_over_time max_over_time""",
    )
)
"""What is neither a metric nor a label."""
_SELECTOR = re.compile(r"([a-z_:][a-z0-9_:]*)\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)")


class Exported:
    """The metrics of all services, with the labels of each."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.labels: dict[str, set[str]] = {name: set() for name in PROCESS}
        self.former: set[str] = set()

    def add(self, service: str, metrics: Any) -> None:
        self.texts[service] = metrics.render().decode()
        for name, described in metrics.described().items():
            self.labels.setdefault(name, set()).update(described.labels)
            if described.text.startswith(FORMER_NAME):
                self.former.add(name)


@pytest.fixture
async def exported(nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet) -> Exported:
    """Of services that run: all in one stack with simulated nodes, and an agent beside a kubelet."""
    found = Exported()
    nodes = [{"name": "n0", "model": "H200", "count": 2, "memory_mib": 1000}]
    async with stack(nodes, preemption={}) as made, agent(nats, host) as real:
        for name, ctx in made.services.items():
            found.add(name, ctx.metrics)
        found.add("node-agent of a kubelet", real.metrics)
    for name, labels in BY_THE_OPERATOR.items():
        found.labels.setdefault(name, labels)
    return found


def expressions() -> dict[str, str]:
    """All PromQL of rules and dashboards, by where it is."""
    found: dict[str, str] = {}
    for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            found[f"{rule.get('alert') or rule['record']} {rule.get('labels')}"] = rule["expr"]
    for path in sorted((FOLDER / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                found[f"{path.stem}: {panel['title']} {target['refId']}"] = target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                found[f"{path.stem}: ${variable['name']}"] = variable["query"]["query"]
    return found


def recorded() -> dict[str, set[str]]:
    return {rule["record"]: set(rule["labels"]) for rule in levels.recordings()}  # type: ignore[arg-type, misc]


def problems(expression: str, labels: dict[str, set[str]]) -> Iterable[str]:
    """The metrics that nothing exports, and the labels that the metrics of the expression do not have."""
    plain = re.sub(r'"[^"]*"', '""', expression)
    plain = re.sub(r"\[[^\]]*\]", "", plain)
    selected = {
        (name, label) for name, inner in _SELECTOR.findall(plain) for label in re.findall(r"(\w+)\s*[=!]", inner)
    }
    grouped = {label.strip() for inner in _GROUPING.findall(plain) for label in inner.split(",") if label.strip()}
    listed = re.fullmatch(r"label_values\((\w+), (\w+)\)", plain)
    if listed:
        plain, grouped = listed[1], {listed[2]}
    bare = _GROUPING.sub("", re.sub(r"\{[^}]*\}", "", plain))
    names = {word for word in re.findall(r"\b[a-z_:][a-z0-9_:]*", bare) if word not in _WORDS}
    yield from (f"no service exports {name}" for name in sorted(names - labels.keys()))
    yield from (
        f"{name} has no label {label}" for name, label in sorted(selected) if label not in labels.get(name, set())
    )
    have = set().union(*(labels.get(name, set()) for name in names)) | OF_THE_SCRAPE
    yield from (f"none of {sorted(names)} has the label {label}" for label in sorted(grouped - have))


def test_an_unknown_metric_or_label_is_found() -> None:
    """The check of the next test finds what it is for."""
    known = {"kerf_x_total": {"a"}, "kerf_y": set()}
    assert list(problems('sum by (a) (rate(kerf_x_total{a="b"}[5m])) / kerf_y > 0', known)) == []
    assert list(problems("sum(kerf_z) or kerf_y", known)) == ["no service exports kerf_z"]
    assert list(problems('kerf_y{a="1"}', known)) == ["kerf_y has no label a"]
    assert list(problems("max by (c) (kerf_y)", known)) == ["none of ['kerf_y'] has the label c"]
    assert list(problems("label_values(kerf_x_total, b)", known)) == ["none of ['kerf_x_total'] has the label b"]


async def test_every_metric_and_label_of_a_rule_or_panel_is_exported(exported: Exported) -> None:
    labels = exported.labels | recorded()
    wrong = {where: found for where, text in expressions().items() if (found := list(problems(text, labels)))}
    assert wrong == {}
    used = " ".join(expressions().values())
    assert {name for name in exported.former if re.search(rf"\b{name}\b", used)} == set(), "former names go with 0.3"


async def test_every_service_says_what_it_is_and_promtool_has_no_objection(exported: Exported) -> None:
    """Former names are left out: their units and suffixes are why they were changed."""
    promtool = program_or_skip("promtool")
    assert len(exported.texts) == 7
    for service, text in exported.texts.items():
        assert "\nkerf_build_info{service=" in text
        assert "\nprocess_resident_memory_bytes " in text
        lines = [line for line in text.splitlines(keepends=True) if not _names_one_of(line, exported.former)]
        done = await asyncio.to_thread(
            subprocess.run,
            [promtool, "check", "metrics"],
            input="".join(lines),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), service


def _names_one_of(line: str, names: set[str]) -> bool:
    words = line.removeprefix("# HELP ").removeprefix("# TYPE ")
    return re.split(r"[ {]", words, maxsplit=1)[0] in names


def test_the_files_are_what_the_definition_gives() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.monitoring", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_rules_are_valid_and_their_tests_pass() -> None:
    promtool = program_or_skip("promtool")
    for command in (["check", "rules", "--lint-fatal", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run([promtool, *command], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    alerts = {alert.name for alert in rules.EVERY}
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == alerts
    for name in alerts:
        text = (RUNBOOKS / f"{name}.md").read_text()
        assert re.findall(r"^#+ (.*)$", text, re.MULTILINE) == [name, "Meaning", "Impact", "Diagnosis", "Remedy"]


def test_the_base_of_the_runbooks_can_be_set() -> None:
    made = rules.rules("https://example.org/kerf/runbooks/")["groups"][1]["rules"][0]
    assert made["annotations"]["runbook_url"] == "https://example.org/kerf/runbooks/KerfNoLeader.md"


def test_a_metric_of_the_operator_is_named_there() -> None:
    """The services of this test do not include the operator."""
    sources = [path.read_text() for path in (ROOT / "services" / "operator").rglob("*.py")]
    assert {name for name in BY_THE_OPERATOR if sources and not any(name in text for text in sources)} == set()


def test_no_dashboard_depends_on_a_data_source_of_one_installation() -> None:
    for path in (FOLDER / "dashboards").glob("*.json"):
        board = json.loads(path.read_text())
        assert {panel["datasource"]["uid"] for panel in board["panels"] if "datasource" in panel} == {"${datasource}"}
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
