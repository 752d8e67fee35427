"""`kerf shadow` on recordings, as its user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.output import Failure
from shadow.command import duration_s
from shadow.recording import Recorder
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


def test_times_have_a_unit() -> None:
    assert [duration_s(text) for text in ("90s", "30m", "1h", "2d")] == [90, 1800, 3600, 172_800]
    for text in ("", "5", "0m", "1.5h", "h"):
        with pytest.raises(Failure, match="such as 30m"):
            duration_s(text)
