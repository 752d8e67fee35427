"""The promise of docs/external-tool.md: a tool needs only a NATS client and the schemas."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from cli.stack import Stack, stack
from cli.up import apply, node_object
from shared.bus.embedded import EmbeddedServer, User
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.commands import SimDelete
from shared.contracts.envelope import type_of, wrap
from shared.contracts.events import EVENTS, Event, SliceEnforced, SliceReleased
from shared.contracts.permissions import tool_of
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "docs" / "examples" / "usage_account.py"
PAGE = (ROOT / "docs" / "external-tool.md").read_text()
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "schemas").glob("*.json")}
SCHEMA_OF = {type_of(kind): kind.__name__ for kind in EVENTS}
RIGHTS = re.findall(r"^    (publish|subscribe): +(.+)$", PAGE, re.MULTILINE)

NODES = [{"name": "n0", "count": 2, "memory_mib": 81_920, "nvlinks": 0}]


def test_the_example_imports_nothing_of_kerf_and_is_short() -> None:
    tree = ast.parse(TOOL.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imported - set(sys.stdlib_module_names) == {"nats"}
    main = next(node for node in tree.body if isinstance(node, ast.AsyncFunctionDef))
    assert sum(1 for _ in range(main.lineno, main.end_lineno or 0)) <= 24


def test_the_page_names_the_permissions_of_a_listed_account() -> None:
    """And an inbox of its own, which a user with a password need not have."""
    user = tool_of("monitoring", "usage")
    assert dict(RIGHTS)["publish"].split(", ") == [subject for row in user.publish for subject in row.subjects]
    assert f"NATS_INBOX_PREFIX, value: {user.inbox_prefix}}}" in PAGE


def test_the_page_names_every_event_and_its_schema() -> None:
    assert dict(re.findall(r"^\| `(dev\.kerf\.\S+)` \| `(\w+)\.json` \|$", PAGE, re.MULTILINE)) == SCHEMA_OF


class Account:
    """The tool as a process, and the last line that it printed for each namespace."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: dict[str, dict[str, float]] = {}

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            _, namespace, *figures = line.decode().split()
            self.said[namespace] = {name: float(value) for name, value in (figure.split("=") for figure in figures)}


async def _account(url: str) -> tuple[Account, asyncio.Task[None]]:
    environment = {"PATH": os.environ["PATH"], "NATS_URL": url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(TOOL), env=environment, stdout=asyncio.subprocess.PIPE
    )
    account = Account(process)
    return account, asyncio.create_task(account.read())


async def _end(account: Account, reading: asyncio.Task[None]) -> None:
    if account.process.returncode is None:
        account.process.kill()
    await account.process.wait()
    await reading


@pytest.fixture
async def nats() -> AsyncIterator[EmbeddedServer]:
    rights = {verb: tuple(part.strip() for part in text.split(",")) for verb, text in RIGHTS[:2]}
    tool = User(name="tool", password="t", publish=rights["publish"], subscribe=rights["subscribe"])
    async with EmbeddedServer(users=(User(name="kerf", password="k"), tool)) as server:
        yield server


async def test_the_account_of_known_events_is_exact_with_the_documented_permissions(nats: EmbeddedServer) -> None:
    """Half a GPU for two hours, a quarter at the same time, one event twice, one end before its start, one that
    continues, and one that is suspended for an hour of three and then has less."""
    async with await NatsBus.connect(nats.url_as("kerf")) as bus:
        await provision(bus)

        def say(event: Event, hours: float, namespace: str) -> None:
            identity, payload = wrap(event, source="/test", now_s=1_790_000_000 + hours * 3600)
            bus.publish_event(subjects.event_in_namespace(event.ENTITY, event.VERB, namespace), payload, identity)

        def pod(name: str, namespace: str) -> dict[str, Any]:
            return {"uid": f"u-{name}", "namespace": namespace, "name": name, "node": "n", "grant_id": f"g-{name}"}

        def begins(name: str, namespace: str, hours: float, gpus: dict[str, tuple[int, int]]) -> None:
            say(
                SliceEnforced(container="c", strategy="advisory", promise="soft", gpus=gpus, **pod(name, namespace)),
                hours,
                namespace,
            )

        def ends(name: str, namespace: str, hours: float) -> None:
            say(SliceReleased(boot_id="b", **pod(name, namespace)), hours, namespace)

        begins("half", "team-a", 0, {"G0": (40_960, 500)})
        begins("half", "team-a", 0, {"G0": (40_960, 500)})
        begins("two", "team-b", 1, {"G1": (1024, 250), "G2": (1024, 250)})
        ends("half", "team-a", 2)
        ends("early", "team-b", 3)
        begins("early", "team-b", 2.5, {"G0": (0, 1000)})
        for hours, gpus in ((0, {"G3": (2048, 1000)}), (1, {}), (2, {"G4": (1024, 500)})):
            begins("changing", "team-c", hours, gpus)
        ends("changing", "team-c", 3)
        await eventually(lambda: bus.stats.events_acknowledged == 10, what="ten events in the stream")
        account, reading = await _account(nats.url_as("tool"))
        try:
            await eventually(lambda: {"team-a", "team-b", "team-c"} <= set(account.said), what="all namespaces")
            assert account.said["team-a"] == {"gpu_hours": 1.0, "gib_hours": 80.0}
            assert account.said["team-c"] == {"gpu_hours": 1.5, "gib_hours": 3.0}
            ends("two", "team-b", 5)
            await eventually(
                lambda: account.said["team-b"]["gpu_hours"] == 2.5, what="the slice that continued to the end"
            )
            assert account.said["team-b"]["gib_hours"] == 8.0
        finally:
            await _end(account, reading)


@pytest.fixture
async def made() -> AsyncIterator[Stack]:
    async with stack(NODES) as running:
        await apply(running.bus, [node_object(node) for node in NODES])
        yield running


def _limits(gpu: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"kerf.dev/gpu": gpu}}}]}


async def test_published_events_follow_the_schemas_and_feed_the_tool(made: Stack) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []

    async def hear(incoming: Incoming) -> None:
        heard.append((incoming.subject, json.loads(incoming.payload)))

    await made.bus.subscribe(subjects.EVENTS_ALL, hear)
    account, reading = await _account(made.url)
    try:
        pods = [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "team.x", "name": name}, "spec": _limits(gpu)}
            for name, gpu in (("fits", "2"), ("waits", "1"))
        ]
        assert (await apply(made.bus, pods)).refusals == ()

        def types() -> set[str]:
            return {event["type"].removeprefix("dev.kerf.").removesuffix(".v1") for _, event in heard}

        await eventually(
            lambda: {"slice.enforced", "placement.rejected"} <= types(), what="one that runs and one that is pending"
        )
        await made.bus.request(subjects.SIM_DELETE, encode(SimDelete(kind="Pod", namespace="team.x", name="fits")))
        await eventually(lambda: "grant.ended" in types(), what="the end")
        await eventually(lambda: "team.x" in account.said, what="the tool's account")
    finally:
        await _end(account, reading)
    assert types() >= {
        "placement.decided",
        "placement.rejected",
        "pod.bound",
        "slice.enforced",
        "slice.released",
        "grant.ended",
    }
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS.values() if "$id" in schema
    )
    for subject, event in heard:
        for name, document in (("Envelope", event), (SCHEMA_OF[event["type"]], event["data"])):
            jsonschema.Draft202012Validator(SCHEMAS[name], registry=registry).validate(document)
        _, _, _, entity, verb, scope, where = subject.split(".")
        assert event["type"] == f"dev.kerf.{entity}.{verb}.v1"
        assert scope == "node" or subjects.untoken(where) == event["data"]["namespace"] == "team.x"
