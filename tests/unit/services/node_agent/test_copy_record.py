"""What is learned of copies is kept and told; what cannot be read spoils no copy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from services.node_agent.config import Config
from services.node_agent.copy_record import CopyRecord

GIB = 1 << 30


class Context:
    """What the record uses of a service's context."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.log: Any = SimpleNamespace(
            info=lambda event, **_: self.said.append(event), warning=lambda event, **_: self.said.append(event)
        )
        self.metrics: Any = SimpleNamespace(observe_by=self._observe_by)

    def _observe_by(self, _name: str, _what: str, values: Any, *, labels: tuple[str, ...]) -> None:
        self.values, self.labels = values, labels


def record(tmp_path: Path, held: Any) -> tuple[CopyRecord, Context]:
    context = Context()
    config = Config(node="n", checkpoint_file=str(tmp_path / "agent.json"), host_memory_mib=100)
    return CopyRecord(context, config, held), context  # type: ignore[arg-type]


def test_the_most_that_a_pod_has_on_one_gpu_counts(tmp_path: Path) -> None:
    made, context = record(tmp_path, {"pod": {"GPU-a": 4 * GIB, "GPU-b": GIB}}.__getitem__)
    made.copied("pod", "out", 2.0)
    assert (made.told().park_mib, made.told().out_mib_per_s, made.told().back_mib_per_s) == (100, 2048, 0)
    assert (context.values(), context.labels) == ({("out",): 2048.0}, ("way",))


def test_the_next_agent_tells_the_same(tmp_path: Path) -> None:
    made, _ = record(tmp_path, lambda _: {"GPU-a": 4 * GIB})
    made.copied("pod", "back", 1.0)
    after, _ = record(tmp_path, lambda _: {})
    assert after.told() == made.told()
    assert after.told().back_mib_per_s == 4096


def test_counters_that_cannot_be_read_are_not_learned_from(tmp_path: Path) -> None:
    def broken(_: str) -> Mapping[str, int]:
        raise OSError(24, "Too many open files")

    made, context = record(tmp_path, broken)
    made.copied("pod", "out", 2.0)
    assert made.told().out_mib_per_s == 0
    assert context.said == ["copy_not_learned"]


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    made, context = record(tmp_path, lambda _: {"GPU-a": 4 * GIB})
    (tmp_path / "copies.new").mkdir()
    made.copied("pod", "out", 2.0)
    assert made.told().out_mib_per_s == 2048
    assert context.said == ["pod_copied", "copy_speeds_not_kept"]
    assert not (tmp_path / "copies.json").exists()


def test_a_damaged_file_is_learned_anew(tmp_path: Path) -> None:
    (tmp_path / "copies.json").write_text(json.dumps({"out": "fast"}))
    made, _ = record(tmp_path, lambda _: {"GPU-a": 4 * GIB})
    assert made.told().out_mib_per_s == 0
