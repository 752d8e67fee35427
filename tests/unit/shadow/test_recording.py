"""Recordings are files that only grow."""

from __future__ import annotations

import resource
from pathlib import Path

import msgspec
import pytest

from shadow.objects import Began, PodSeen, SeenPod, trimmed_pod
from shadow.recording import Recorder, RecordingError, line_of, read
from tests.support import shadow


def test_what_was_written_is_read(tmp_path: Path) -> None:
    facts = shadow.Recording(shadow.node()).seen(1, shadow.pod(on="n1")).gone(2, "p").ended(3)
    recorder = Recorder(tmp_path / "r.jsonl")
    for fact in facts:
        recorder.write(fact)
    recorder.close()
    assert read(tmp_path / "r.jsonl") == facts


def test_a_line_that_was_cut_off_at_the_end_is_left_out(tmp_path: Path) -> None:
    whole = [line_of(fact) for fact in shadow.Recording(shadow.node()).ended(3)]
    (tmp_path / "r.jsonl").write_bytes(b"".join(whole)[:-20])
    assert len(read(tmp_path / "r.jsonl")) == len(whole) - 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "does not begin"),
        (b'{"fact":"ended","at_s":1}\n', "does not begin"),
        (b'{"fact":"began","at_s":1}\nnonsense\n{"fact":"ended","at_s":1}\n', "line 2"),
        (b'{"fact":"began","at_s":1,"version":9}\n', "version 9"),
    ],
)
def test_a_file_that_is_no_recording_is_a_clear_error(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "r.jsonl").write_bytes(text)
    with pytest.raises(RecordingError, match=said):
        read(tmp_path / "r.jsonl")


def test_a_disk_that_is_full_is_a_clear_error_and_costs_one_line(tmp_path: Path) -> None:
    facts = shadow.Recording(shadow.node()).ended(3)
    recorder = Recorder(tmp_path / "r.jsonl")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(line_of(facts[0])) + 10, unlimited[1]))
    try:
        recorder.write(facts[0])
        with pytest.raises(RecordingError, match=r"r\.jsonl cannot be written: File too large"):
            recorder.write(facts[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    recorder.close()
    assert read(tmp_path / "r.jsonl") == facts[:1]


def test_a_file_to_which_nothing_was_written_is_removed(tmp_path: Path) -> None:
    Recorder(tmp_path / "r.jsonl").close()
    assert list(tmp_path.iterdir()) == []


def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.jsonl")
    recorder.write(Began(at_s=1))
    recorder.close()
    with pytest.raises(RecordingError, match="never overwritten"):
        Recorder(tmp_path / "r.jsonl")
    with pytest.raises(RecordingError, match="cannot be created"):
        Recorder(tmp_path / "missing" / "r.jsonl")
    with pytest.raises(RecordingError, match="cannot be read"):
        read(tmp_path / "other.jsonl")


def test_environment_and_manifests_are_not_recorded() -> None:
    raw = {
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "SECRET"}},
        "spec": {"containers": [{"name": "c", "env": [{"name": "TOKEN", "value": "SECRET"}], "args": ["SECRET"]}]},
    }
    seen = trimmed_pod(msgspec.convert(raw, SeenPod))
    assert b"SECRET" not in line_of(PodSeen(at_s=1, pod=seen))
    assert line_of(Began(at_s=1)).startswith(b'{"fact":"began"')
