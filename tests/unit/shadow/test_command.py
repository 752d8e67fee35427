"""`kerf shadow` on recordings, as its user runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from cli.__main__ import parser
from cli.output import Failure
from shadow import command, recording
from shadow.command import duration_s
from shadow.objects import AnyFact
from shadow.page import write_pages
from shadow.recording import Recorder, RecordingError
from shadow.report import make
from shared.kube.transport import Response
from tests.support import shadow
from tests.support.command import Command

TWO = {"nvidia.com/gpu": "2"}


def recorded(path: Path) -> Path:
    recording = shadow.Recording(shadow.node("n1", shadow.gfd(2)))
    recording.seen(1, shadow.pod("a", TWO)).seen(5, shadow.pod("a", TWO, on="n1"))
    recorder = Recorder(path)
    for fact in recording.ended(60):
        recorder.write(fact)
    recorder.close()
    return path


async def test_a_recording_gives_the_report_without_a_cluster(tmp_path: Path) -> None:
    file = recorded(tmp_path / "r.jsonl")
    plain = await (await Command.start("shadow", "--replay", str(file), "--pages", str(tmp_path / "pages"))).done()
    assert plain.code == 0, plain.err
    assert "1 grants of nvidia read, 0 of them wrong." in plain.out
    assert "team/a (2 GPUs, whole): there after 4.0 s on n1 (2 of its GPUs); Kerf after 0.0 s on n1" in plain.out
    (page,) = (tmp_path / "pages").iterdir()
    assert page.name == "0001-team_a.txt"
    text = page.read_text()
    assert "What each GPU held at 1.0 s, with Kerf:\n  n1 GPU 0 n1/gpu-0: 40960 of 40960 MiB (team/a" in text
    assert "What each GPU held at 1.0 s, there:\n  n1 GPU 0 n1/gpu-0: 0 of 40960 MiB (no pod)" in text
    said = json.loads((await (await Command.start("shadow", "--replay", str(file), "--json")).done()).out)
    assert (said["grants_read"], said["comparison"]["there"]["mean_wait_s"]) == (1, 4.0)


async def test_what_cannot_be_done_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("{}\n")
    bad = await (await Command.start("shadow", "--replay", str(tmp_path / "bad"))).done()
    assert (bad.code, "line 1" in bad.err) == (1, True)
    there = await (await Command.start("shadow", "--record", str(tmp_path / "bad"))).done()
    assert "never overwritten" in there.err
    config = await (await Command.start("shadow", "--kubeconfig", str(tmp_path / "none"))).done()
    assert (config.code, "kubeconfig" in config.err) == (1, True)


async def test_a_wrong_option_leaves_no_file_behind(tmp_path: Path) -> None:
    for _ in range(2):
        wrong = await (await Command.start("shadow", "--record", str(tmp_path / "r.jsonl"), "--for", "5")).done()
        assert (wrong.code, "such as 30m" in wrong.err) == (1, True)


class Cluster:
    """Has a node and a pod, and nothing changes."""

    async def request(self, _method: str, path: str, _body: bytes = b"", **_options: object) -> Response:
        items = [shadow.node("n1", shadow.gfd(2)) if "/nodes" in path else shadow.pod("a", TWO, on="n1")]
        return Response(200, msgspec.json.encode({"metadata": {"resourceVersion": "5"}, "items": items}))

    @asynccontextmanager
    async def stream(self, path: str, **_options: object) -> AsyncIterator[tuple[Response, AsyncIterator[bytes]]]:
        yield Response(400 if "sendInitialEvents" in path else 200, b""), self._events()

    async def _events(self) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def close(self) -> None:
        pass


class FullDisk(Recorder):
    def write(self, fact: AnyFact) -> None:
        raise RecordingError("r.jsonl cannot be written: No space left on device")


async def test_a_watch_outlives_the_disk_of_its_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def connected(*_arguments: object, **_options: object) -> Cluster:
        return Cluster()

    monkeypatch.setattr(command, "connect", connected)
    monkeypatch.setattr(command, "configure_logging", lambda *_: None)  # of the process, and so of other tests
    monkeypatch.setattr(recording, "Recorder", FullDisk)
    options = ["--for", "1s", "--record", str(tmp_path / "r.jsonl")]
    with pytest.raises(Failure, match="No space left on device; the recording ends there"):
        await command.run(parser().parse_args(["shadow", *options]))
    said = capsys.readouterr()
    assert "1 nodes with 2 GPUs; 1 pods are compared" in said.out
    assert said.err.count("No space left") == 1


async def test_the_report_is_printed_though_its_pages_cannot_be_written(tmp_path: Path) -> None:
    file, pages = recorded(tmp_path / "r.jsonl"), tmp_path / "pages"
    pages.write_text("a file")
    done = await (await Command.start("shadow", "--replay", str(file), "--json", "--pages", str(pages))).done()
    assert (done.code, "File exists" in done.err) == (1, True)
    assert json.loads(done.out)["grants_read"] == 1


def test_the_page_of_a_pod_with_a_long_name_has_a_shorter_one(tmp_path: Path) -> None:
    name = "x" * 250
    seen = shadow.Recording(shadow.node("n1", shadow.gfd(2))).seen(1, shadow.pod(name, TWO))
    made = make(seen.seen(5, shadow.pod(name, TWO, on="n1")).ended(60))
    assert write_pages(made, tmp_path) == 1
    assert [page.name[:20] for page in tmp_path.iterdir()] == ["0001-team_xxxxxxxxxx"]


def test_times_have_a_unit() -> None:
    assert [duration_s(text) for text in ("90s", "30m", "1h", "2d")] == [90, 1800, 3600, 172_800]
    for text in ("", "5", "0m", "1.5h", "h"):
        with pytest.raises(Failure, match="such as 30m"):
            duration_s(text)
