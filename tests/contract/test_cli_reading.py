"""What people read: terminals of 80 columns, large clusters, events, and the session of the README."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cli.stack import Stack, stack
from cli.up import apply, node_object
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import queries
from shared.contracts.base import encode
from shared.contracts.explain import GpuReason, NodeExplanation, PodExplanation, Reason, WhenExplanation
from shared.contracts.queries import ExplainAnswer, InspectAnswer, InspectGpu, InspectNode, WhenAnswer
from shared.contracts.query import Query
from tests.support.command import Command, kerf, kerf_on_terminal
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
NODES = [{"name": f"gpu-{i}", "model": "NVIDIA-A100", "count": 2, "memory_mib": 40_960} for i in range(2)]
LONG = "gke-production-eu-gpu-pool-h200-8g-{:05d}.europe-west4-b.example.internal"


async def answering(bus: NatsBus, query: Query, answer: Any) -> None:
    async def respond(incoming: Incoming) -> None:
        await bus.respond(incoming, encode(answer))

    await bus.subscribe(query.subject, respond)


async def test_inspect_loses_nothing_on_80_columns(bus: NatsBus, nats: EmbeddedServer) -> None:
    gpus = tuple(
        InspectGpu(
            uuid=f"GPU-{i}",
            index=i,
            model="NVIDIA-H200",
            state="hung" if i == 3 else "healthy",
            memory_mib=143_771,
            allocated_memory_mib=1024 * i,
            allocated_compute_milli=0,
        )
        for i in range(8)
    )
    nodes = tuple(InspectNode(node=LONG.format(i), address=f"10.0.0.{i}", gpus=gpus) for i in range(3))
    await answering(bus, queries.INSPECT, InspectAnswer(nodes=nodes))
    lines = await kerf_on_terminal("inspect", nats=nats.url)
    assert max(map(len, lines)) <= 80
    text = "".join("".join(lines).split()).replace("\u00a0", "")
    assert "…" not in text
    for part in ("3:3/140hung", "7:7/140", "28/1123"):
        assert text.count(part) == 3, lines
    wide = await kerf_on_terminal("inspect", nats=nats.url, columns=320)
    assert "GPU7(Allocated/Total)" in wide[0]
    assert all(any(node.node in line for line in wide) for node in nodes)


def _explanation(nodes: int) -> PodExplanation:
    """A pod that 1,000 equal nodes have no room for, and its advice as Events have it."""
    full = Reason(code="gpu-full", sentence="container main needs a GPU and 0 of 8 fit; nearest is GPU 0: needs 64 GiB")
    gpus = tuple(
        GpuReason(
            uuid=f"GPU-{i}",
            index=i,
            model="NVIDIA-H200",
            free_memory_mib=20_069,
            free_compute_milli=1000,
            fits=False,
            missing="needs 64 GiB, 19.5 GiB free of 140.4 GiB",
        )
        for i in range(8)
    )
    helps = ("fits with 44.5 GiB less GPU memory: 19.5 GiB (gpu-0)", "wait until a pod on it ends (gpu-1)")
    return PodExplanation(
        namespace="team",
        name="train",
        state="waiting",
        sentence=f"0 of {nodes} nodes can take the pod: {nodes} nodes: {full.sentence}. What would help: {helps[0]}; "
        "its queue borrows",
        helps=helps,
        waiting_s=5,
        ahead=1,
        nodes=tuple(
            NodeExplanation(node=f"gpu-{i}", feasible=False, reasons=(full,), gpus=gpus) for i in range(min(nodes, 20))
        ),
    )


async def test_why_says_once_what_many_nodes_have_in_common(bus: NatsBus, nats: EmbeddedServer) -> None:
    await answering(bus, queries.WHY, ExplainAnswer(explanation=_explanation(1000)))
    done = await kerf("why", "team/train", nats=nats.url)
    lines = done.out.splitlines()
    assert lines[0] == "team/train  waiting for 5 s, 1 pod before it"
    assert len(lines) < 12, done.out
    assert "gpu-0, gpu-1, gpu-2, gpu-3, gpu-4 and 15 more: container main needs a GPU" in done.out
    assert "GPUs 0-7 NVIDIA-H200: 19.5 GiB and 100 % free, needs 64 GiB" in done.out
    assert done.out.count("fits with 44.5 GiB less") == 1
    assert "; its queue borrows" in done.out


async def test_why_breaks_lines_between_words(bus: NatsBus, nats: EmbeddedServer) -> None:
    explanation = _explanation(1000)
    await answering(bus, queries.WHY, ExplainAnswer(explanation=explanation))
    lines = await kerf_on_terminal("why", "team/train", nats=nats.url)
    assert max(map(len, lines)) <= 80
    words = set(" ".join(lines).split())
    assert set(explanation.nodes[0].reasons[0].sentence.split()) <= words | {"64", "GiB"}


async def test_when_breaks_lines_between_words(bus: NatsBus, nats: EmbeddedServer) -> None:
    sentence = (
        "in 20 min at the earliest, on " + LONG.format(7) + ", when default/train-0 has ended and its GPUs are free"
    )
    told = WhenExplanation(namespace="team", name="p", state="known", sentence=sentence, assumptions=(sentence,))
    await answering(bus, queries.WHEN, WhenAnswer(when=told))
    lines = await kerf_on_terminal("when", "team/p", nats=nats.url)
    assert max(map(len, lines)) <= 80
    assert [word for word in sentence.split() if word not in " ".join(lines).split()] == []
    assert lines[lines.index("Provided that") - 1] == ""
    assert lines[-1].startswith("  "), "a line that goes on has the indent of its first"


@pytest.fixture
async def made() -> AsyncIterator[Stack]:
    async with stack(NODES) as running:
        await apply(running.bus, [node_object(n) for n in NODES])
        yield running


def pod(name: str, **limits: Any) -> dict[str, Any]:
    amounts = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in limits.items()}
    container = {"name": "main", "image": "pause", "resources": {"limits": amounts}}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "team"}, "spec": {"containers": [container]}}


async def test_events_say_why_and_print_no_dicts(made: Stack) -> None:
    command = await Command.start("events", "-n", "team", "--count", "8", nats=made.url)
    number = iter(range(10_000))

    async def ended() -> bool:
        """Creates pods until enough events arrive: nothing shows when the other process has subscribed."""
        at = next(number)
        await apply(made.bus, [pod(f"fits-{at}", gpu_memory="1Mi"), pod(f"large-{at}", gpu_memory="100Gi")])
        return command.process.returncode is not None

    await eventually(ended, within_s=30, every_s=0.2, what="events in the other process")
    text = (await command.done()).out
    assert re.search(
        r"placement\.rejected team/large-\d+ 0 of 2 nodes can take the pod: .*needs 100 GiB on one GPU", text
    )
    assert re.search(r"placement\.decided team/fits-\d+ on gpu-\d: 1 MiB and 0 % of GPU-", text)
    assert "{" not in text
    assert "'" not in text.replace("node's", "")


async def test_delete_removes_a_pod_a_node_and_the_objects_of_a_file(made: Stack, tmp_path: Path) -> None:
    await apply(made.bus, [pod("one", gpu_memory="1Gi"), pod("two", gpu_memory="1Gi")])
    assert (await kerf("delete", "team/one", nats=made.url)).out == "Pod one deleted\n"
    file = tmp_path / "two.yaml"
    file.write_text("kind: Pod\nmetadata: {name: two, namespace: team}\n")
    assert (await kerf("delete", "-f", str(file), nats=made.url)).out == "Pod two deleted\n"
    assert (await kerf("delete", "node", "gpu-1", nats=made.url)).out == "Node gpu-1 deleted\n"
    gone = await kerf("delete", "team/one", nats=made.url)
    assert (gone.code, "not found" in gone.err) == (1, True)
    unclear = await kerf("delete", nats=made.url)
    assert (unclear.code, "name what to delete" in unclear.err) == (1, True)


async def test_up_divides_gpus_by_mig_only_where_that_is_known() -> None:
    unknown = await kerf("up", "--mig", "1", "--gpu-model", "Tesla-T4", "--gpu-memory-mib", "16384")
    assert (unknown.code, "MIG is known of A30, A100-40GB" in " ".join(unknown.err.split())) == (1, True)
    many = await kerf("up", "--mig", "9", "--gpus", "8")
    assert (many.code, "must be between 0 and" in many.err) == (1, True)


async def test_version_is_printed() -> None:
    done = await kerf("--version")
    assert (done.code, bool(re.fullmatch(r"kerf \d+\.\d+\.\d+\S*\n", done.out))) == (0, True), done.out


def _session() -> tuple[list[str], list[list[str]]]:
    """The two blocks of commands below "To explore it": the cluster, and what is done with it."""
    text = (ROOT / "README.md").read_text().partition("To explore it")[2]
    first, second = re.findall(r"```\n(.*?)```", text, re.DOTALL)[:2]
    (up,) = _commands(first)
    return up, _commands(second)


def _commands(block: str) -> list[list[str]]:
    split = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert all(words[0] == ".venv/bin/kerf" for words in split)
    return [words[1:] for words in split]


async def test_the_session_of_the_readme_runs_word_for_word() -> None:
    """As it stands there, but for the port, which may be taken here."""
    up, commands = _session()
    running = await Command.start(*up, "--port", "0")
    try:
        assert running.process.stderr is not None
        lines: list[str] = []
        while not lines or "export KERF_NATS_URL=" not in lines[-1]:
            line = await asyncio.wait_for(running.process.stderr.readline(), 60)
            assert line, lines
            lines.append(line.decode())
        url = lines[-1].partition("=")[2].strip()
        for command in commands:
            done = await kerf(*command, nats=url)
            assert done.code == 0, (command, done.err)
            assert done.err == ""
    finally:
        running.process.terminate()
        await running.done()
