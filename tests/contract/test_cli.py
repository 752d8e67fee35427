"""The command line on a running stack: each command as a process, with the embedded defaults."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.stack import Stack, stack
from cli.up import apply, node_object
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.envelope import unwrap
from shared.contracts.events import PlacementRejected, PodBound
from tests.support.command import Command, Done, kerf
from tests.support.waiting import eventually

NODES = [{"name": f"gpu-{i}", "model": "NVIDIA-A100", "count": 2, "memory_mib": 40_960} for i in range(2)]


def manifest(name: str, **limits: str) -> dict[str, Any]:
    resources = {"limits": {f"kerf.dev/{key.replace('_', '-')}": value for key, value in limits.items()}}
    container = {"name": "main", "image": "pause", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"containers": [container]},
    }


class CliCluster:
    """A stack, and the command line as its user runs it."""

    def __init__(self, made: Stack, folder: Path) -> None:
        self.made, self.folder = made, folder
        self.outcomes: dict[str, str] = {}

    async def heard(self, incoming: Incoming) -> None:
        _, event = unwrap(incoming.payload)
        if isinstance(event, PodBound | PlacementRejected):
            self.outcomes[event.name] = type(event).__name__

    def file(self, *documents: Any) -> str:
        path = self.folder / "objects.yaml"
        path.write_text(yaml.safe_dump_all(documents))
        return str(path)

    async def kerf(self, *arguments: str) -> Done:
        return await kerf(*arguments, nats=self.made.url)

    async def json(self, *arguments: str) -> Any:
        done = await self.kerf(*arguments, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[CliCluster]:
    """Two nodes of two GPUs; `half` is bound, `huge` is pending."""
    async with stack(NODES, trace_ratio=1.0, placement={"resize_beyond_request": True}) as running:
        one = CliCluster(running, tmp_path)
        await running.bus.subscribe(f"{subjects.VERSION}.event.>", one.heard)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        answer = await apply(
            running.bus,
            [
                namespace,
                *(node_object(n) for n in NODES),
                manifest("half", gpu_memory="20Gi"),
                manifest("huge", gpu="4"),
            ],
        )
        assert answer.refusals == ()
        await eventually(
            lambda: one.outcomes == {"half": "PodBound", "huge": "PlacementRejected"},
            what="one pod bound, one with a reason why not",
        )
        yield one


async def test_inspect_has_the_columns_of_gpushare(cluster: CliCluster) -> None:
    done = await cluster.kerf("inspect")
    assert done.code == 0, done.err
    header, *rows = done.out.splitlines()
    assert header.split("  ")[0] == "NAME"
    assert "IPADDRESS" in header
    assert "GPU0(Allocated/Total)" in header
    assert "GPU1(Allocated/Total)" in header
    assert header.rstrip().endswith("GPU Memory(GiB)")
    assert [row.split()[0] for row in rows[:2]] == ["gpu-0", "gpu-1"]
    assert sum("20/40" in row for row in rows[:2]) == 1
    assert rows[-2:] == ["Allocated/Total GPU Memory In Cluster:", "20/160 GiB (12.5%), compute 0%"]


async def test_inspect_with_details_names_the_pods(cluster: CliCluster) -> None:
    done = await cluster.kerf("inspect", "-d")
    assert done.code == 0, done.err
    (row,) = [line.split() for line in done.out.splitlines() if line.startswith("half")]
    assert row[:2] == ["half", "team"]
    assert "20 GiB, 0%" in done.out


async def test_inspect_shows_what_a_pod_is_guaranteed_and_what_it_may_use(tmp_path: Path) -> None:
    """From the annotations through admission and placement; the simulated node enforces slices."""
    node = NODES[0] | {"firm": True}
    async with stack([node]) as running:
        one = CliCluster(running, tmp_path)
        await running.bus.subscribe(f"{subjects.VERSION}.event.>", one.heard)
        burst = manifest("burst", gpu_memory="8Gi", gpu_compute="30")
        burst["metadata"]["annotations"] = {"kerf.dev/gpu-memory-limit": "24Gi", "kerf.dev/gpu-compute-limit": "60"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        answer = await apply(running.bus, [namespace, node_object(node), burst])
        assert answer.refusals == ()
        await eventually(lambda: one.outcomes == {"burst": "PodBound"})
        done = await one.kerf("inspect", "-d")
        assert "8 GiB (up to 24), 30% (up to 60%)" in done.out, done.out + done.err
        ((gpu, _),) = [shown["gpus"] for shown in (await one.json("inspect"))["nodes"]]
        assert (gpu["allocated_memory_mib"], gpu["pods"][0]["memory_limit_mib"]) == (8192, 24576)


async def test_inspect_of_one_node_as_json(cluster: CliCluster) -> None:
    answer = await cluster.json("inspect", "gpu-1")
    assert [n["node"] for n in answer["nodes"]] == ["gpu-1"]
    assert answer["cluster"]["gpus"] == 2


async def test_why_says_why_a_pod_is_pending_and_what_would_help(cluster: CliCluster) -> None:
    answer = await cluster.json("why", "team/huge")
    assert answer["state"] == "waiting"
    assert {r["code"] for n in answer["nodes"] for r in n["reasons"]} == {"too-few-gpus"}
    assert any("ask for at most 2 GPUs" in text for text in answer["helps"]), answer
    done = await cluster.kerf("why", "-n", "team", "huge")
    assert "waiting" in done.out
    assert "needs 4 GPUs on one node, the node has 2" in done.out


async def test_why_of_a_bound_pod_names_its_node(cluster: CliCluster) -> None:
    answer = await cluster.json("why", "team/half")
    assert answer["state"] == "bound"
    assert "gpu-" in answer["sentence"]


async def test_why_of_an_unknown_pod_is_an_error(cluster: CliCluster) -> None:
    done = await cluster.kerf("why", "team/nobody")
    assert (done.code, done.out) == (1, "")
    assert "team/nobody" in done.err


async def test_what_if_finds_a_place_without_reserving_it(cluster: CliCluster) -> None:
    before = await cluster.json("inspect")
    answer = await cluster.json("what-if", "-f", cluster.file(manifest("dream", gpu="2")))
    assert answer["state"] == "would-fit", answer
    assert await cluster.json("inspect") == before
    refused = await cluster.json("what-if", "-f", cluster.file(manifest("dream", gpu="3")))
    assert refused["state"] == "would-wait"
    assert "no preemptor is connected" in refused["preemption"]["error"], "and the rest is told all the same"
    assert "preemption" not in answer


async def test_what_if_accepts_only_pods(cluster: CliCluster) -> None:
    done = await cluster.kerf("what-if", "-f", cluster.file({"kind": "Deployment", "metadata": {"name": "d"}}))
    assert done.code == 1
    assert "is no Pod manifest" in done.err


async def test_what_if_says_how_to_ask_about_a_pod_of_another_dialect(cluster: CliCluster) -> None:
    pod = manifest("theirs")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": 3}}
    done = await cluster.kerf("what-if", "-f", cluster.file(pod))
    assert done.code == 1
    assert "aliyun.com/gpu-mem" in done.err
    assert "kubectl create --dry-run=server" in done.err


async def test_what_if_a_node_were_lost_or_added(cluster: CliCluster) -> None:
    lost = (await cluster.json("what-if", "--drain", "gpu-0", "--drain", "gpu-1"))["world"]
    assert "half" in {pod["name"] for pod in lost["stranded"]}
    more = await cluster.json("what-if", "--add-node", "gpu-1", "--count", "2")
    assert more["world"]["sentence"]
    done = await cluster.kerf("what-if", "--drain", "nowhere")
    assert (done.code, "there is no node nowhere" in done.err) == (1, True)


async def test_what_if_a_pod_were_larger(cluster: CliCluster) -> None:
    answer = await cluster.json("what-if", "--resize", "team/half", "--limit", "kerf.dev/gpu-memory=4000Gi")
    assert [pod["name"] for pod in answer["world"]["stranded"]] == ["half"]
    done = await cluster.kerf("what-if", "--resize", "team/half")
    assert (done.code, "--limit" in done.err) == (1, True)


async def test_when_is_unknown_if_no_pod_has_a_known_end(cluster: CliCluster) -> None:
    answer = await cluster.json("when", "team/huge")
    assert (answer["state"], bool(answer["assumptions"])) == ("unknown", True)
    done = await cluster.kerf("when", "team/half")
    assert (done.code, "does not wait for a place" in done.err) == (1, True)


async def test_scale_says_which_nodes_would_help(cluster: CliCluster) -> None:
    answer = await cluster.json("scale")
    assert (answer["waiting"], answer.get("needs", [])) == (1, []), "no node could ever hold team/huge"
    done = await cluster.kerf("scale")
    assert "1 pod waits, and 64 more nodes of no type in this cluster would help" in " ".join(done.out.split())
    done = await cluster.kerf("scale", "--max-nodes", "0")
    assert (done.code, "a number from 1 to 256" in done.err) == (1, True)


async def test_advise_takes_gpu_groups_and_only_one_goal(cluster: CliCluster) -> None:
    answer = await cluster.json("advise", "--gpus", "1")
    assert answer["places_after"] >= answer.get("places_before", 0)
    done = await cluster.kerf("advise", "team/huge", "--gpus", "1")
    assert (done.code, "name what should fit" in done.err) == (1, True)


async def test_events_start_now_and_end_after_count(cluster: CliCluster) -> None:
    command = await Command.start("events", "--json", "--count", "1", "-n", "team", nats=cluster.made.url)
    number = iter(range(10_000))

    async def ended() -> bool:
        """Creates pods until an event of one arrives: nothing shows when the other process has subscribed."""
        await apply(cluster.made.bus, [manifest(f"more-{next(number)}", gpu_memory="1Mi")])
        return command.process.returncode is not None

    await eventually(ended, within_s=30, every_s=0.2, what="an event in the other process")
    done = await command.done()
    assert done.code == 0, done.err
    event = json.loads(done.out)
    assert event["type"].startswith("dev.kerf.")
    assert event["data"]["namespace"] == "team"


async def test_trace_shows_every_service_that_touched_the_pod(cluster: CliCluster) -> None:
    async def whole() -> set[str] | None:
        done = await cluster.kerf("trace", "team/half", "--json")
        services = {s["service"] for s in json.loads(done.out)["spans"]} if done.code == 0 else set()
        return services if len(services) >= 3 else None

    services = await eventually(whole, within_s=30, every_s=0.2, what="spans of watcher, placement and node agent")
    assert any("placement" in s for s in services)
    assert any("watcher" in s for s in services)
    done = await cluster.kerf("trace", "team/half")
    assert done.out.startswith("trace ")


async def test_a_missing_trace_is_reported(cluster: CliCluster) -> None:
    done = await cluster.kerf("trace", "team/nobody")
    assert done.code == 1
    assert "no spans of team/nobody" in done.err or "team/nobody" in done.err


async def test_top_counts_pods_and_shows_gpu_use(cluster: CliCluster) -> None:
    answer = await cluster.json("top")
    assert (
        answer["status"]["nodes"],
        answer["status"]["gpus"],
        answer["status"]["pods_bound"],
        answer["status"]["pods_waiting"],
    ) == (
        2,
        4,
        1,
        1,
    )

    async def live() -> bool:
        return [(r["key"], r["live"]) for r in (await cluster.json("top"))["usage"]] == [("team", 1)]

    await eventually(live, within_s=30, every_s=0.2, what="the namespace's live slice")
    done = await cluster.kerf("top", "--by", "pod")
    assert "2 nodes (2 synced), 4 GPUs" in done.out
    assert "used since 20" in done.out


async def test_queues_shows_allocated_and_pending_of_each(cluster: CliCluster) -> None:
    assert "There are no queues" in (await cluster.kerf("queues")).out
    text = "queues: [{name: research, limit: {gpus: 1}}, {name: team, parent: research, guaranteed: {gpus: 0.25}}]"
    policy = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kerf-policy", "namespace": "kerf-system"},
        "data": {"queues.yaml": text},
    }
    assert (await cluster.kerf("apply", "-f", cluster.file(policy))).code == 0

    async def both() -> bool:
        rows = [line.split() for line in (await cluster.kerf("queues")).out.splitlines()]
        return rows[1:] == [["research", "0.5", "0.25", "1", "1", "0", "1"], ["team", "0.5", "0.25", "1", "0", "1"]]

    await eventually(both, within_s=20, every_s=0.2, what="both queues")
    answer = await cluster.json("queues")
    assert [(q["name"], q["gpu_milli_used"], q.get("waiting", 0)) for q in answer["queues"]] == [
        ("research", 500, 1),
        ("team", 500, 1),
    ]
    policy["data"] = {"queues.yaml": "queues: [{name: [bold]}]"}
    assert (await cluster.kerf("apply", "-f", cluster.file(policy))).code == 0

    async def told_so() -> bool:
        done = await cluster.kerf("queues")
        return "is not in force as it is written" in done.err and "research" in done.out

    await eventually(told_so, within_s=20, every_s=0.2, what="the error about the invalid text, and the earlier queues")


async def test_apply_creates_objects_and_reports_refusals(cluster: CliCluster) -> None:
    done = await cluster.kerf("apply", "-f", cluster.file(manifest("third", gpu_memory="1Gi")))
    assert (done.code, done.out) == (0, "1 of 1 applied\n"), done.err
    await eventually(lambda: cluster.outcomes.get("third") == "PodBound", what="the applied pod bound")
    mixed = manifest("mixed", gpu_memory="1Gi")
    mixed["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = "1"
    again = await cluster.kerf("apply", "-f", cluster.file(mixed, manifest("fourth", gpu_memory="1Gi")))
    assert (again.code, again.out) == (1, "1 of 2 applied\n")
    assert "mixed" in again.err
    assert "keep one of them" in again.err


async def test_apply_reports_errors_in_a_file(cluster: CliCluster) -> None:
    (cluster.folder / "bad.yaml").write_text("a: [b")
    bad = await cluster.kerf("apply", "-f", str(cluster.folder / "bad.yaml"))
    assert bad.code == 1
    assert "is neither YAML nor JSON" in bad.err
    missing = await cluster.kerf("apply", "-f", str(cluster.folder / "missing.yaml"))
    assert missing.code == 1
    assert "No such file" in missing.err
    (cluster.folder / "binary.yaml").write_bytes(b"\xff\xfe")
    binary = await cluster.kerf("apply", "-f", str(cluster.folder / "binary.yaml"))
    assert binary.code == 1
    assert "is no text" in binary.err
    assert "Traceback" not in binary.err


async def test_without_nats_the_error_says_how_to_start_it() -> None:
    done = await kerf("inspect", nats="nats://127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert "no NATS at nats://127.0.0.1:1" in done.err.replace("\n", " ")
    assert "kerf up" in done.err


async def test_user_input_is_not_interpreted_as_markup(cluster: CliCluster) -> None:
    done = await cluster.kerf("why", "[/x]")
    assert done.code == 1
    assert "kerf: no pod [/x] is known" in done.err or "kerf: no pod default/[/x] is known" in done.err, done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nodes", "-1", "--port", "0"), "--nodes is -1; it must be at least 0"),
        (("--kubeconfig", "/missing", "--port", "0"), "kubeconfig /missing: No such file"),
        (("--preemptor", "checkpoints", "--port", "0"), "write a setting as NAME=VALUE"),
        (("--preemptor", "chekpoints=true", "--port", "0"), "unknown field `chekpoints`"),
        (("--preemptor", "evictions_per_hour=-1", "--port", "0"), "`int` >= 0"),
    ],
)
async def test_up_reports_why_it_cannot_start(arguments: tuple[str, ...], words: str) -> None:
    done = await kerf("up", *arguments, nats="nats://127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert words in done.err.replace("\n", " ")
    assert "Traceback" not in done.err


async def test_up_reports_a_port_in_use(cluster: CliCluster) -> None:
    port = cluster.made.url.rsplit(":", 1)[1]
    done = await kerf("up", "--port", port, nats=cluster.made.url)
    assert done.code == 1
    said = " ".join(done.err.split())
    assert said.startswith(f"kerf: port {port} of 127.0.0.1 is in use by another program")
    assert "[INF]" not in said, "the server's log lines are no message"
    assert "Traceback" not in done.err


async def test_up_ends_with_an_error_when_its_nats_is_killed() -> None:
    command = await Command.start("up", "--nodes", "1", "--port", "0")
    err = command.process.stderr
    assert err is not None
    assert b"Kerf is up" in await asyncio.wait_for(err.readline(), 30)
    assert b"export KERF_NATS_URL=" in await asyncio.wait_for(err.readline(), 30)
    assert b"The live page: http://127.0.0.1:" in await asyncio.wait_for(err.readline(), 30)
    children = Path(f"/proc/{command.process.pid}/task/{command.process.pid}/children").read_text().split()  # noqa: ASYNC240 - /proc is memory
    assert len(children) == 1, command.running()
    os.kill(int(children[0]), signal.SIGKILL)
    done = await command.done()
    assert done.code == 1
    assert "the embedded NATS server ended by itself" in done.err
    assert done.left == ()
