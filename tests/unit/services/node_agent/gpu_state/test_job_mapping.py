"""Which containers have a part of each GPU, for monitors."""

from __future__ import annotations

from pathlib import Path

from services.node_agent.gpu_state.job_mapping import mapping, pod_info, write
from shared.contracts.node_commands import LiveSlice
from tests.support import build

INVENTORY = build.inventory("n", gpus=2)
FIRST, SECOND = (gpu.uuid for gpu in INVENTORY.gpus)


def part(pod: str, *uuids: str, container: str = "main") -> LiveSlice:
    return LiveSlice(
        uid=f"uid-{pod}",
        namespace="team",
        name=pod,
        container=container,
        grant_id=f"grant-{pod}",
        strategy="interposer",
        gpus=dict.fromkeys(uuids, (1024, 100)),
    )


def test_each_container_and_gpu_is_one_series() -> None:
    found = pod_info(INVENTORY, [part("a", FIRST), part("b", FIRST, SECOND, container="x"), part("c", "unknown")])
    assert found == [
        (FIRST, "0", "team", "a", "main", "interposer"),
        (FIRST, "0", "team", "b", "x", "interposer"),
        (SECOND, "1", "team", "b", "x", "interposer"),
        ("unknown", "", "team", "c", "main", "interposer"),
    ]


def test_each_gpu_has_a_file_with_a_line_for_each_container() -> None:
    found = mapping(INVENTORY, [part("b", FIRST), part("a", FIRST), part("c", "unknown")])
    assert found == {"0": "team/a/main\nteam/b/main\n", "1": ""}
    assert mapping(None, [part("a", FIRST)]) == {}


def test_files_follow_the_containers_and_gpus_that_are_gone_have_none(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    first = mapping(INVENTORY, [part("a", FIRST)])
    write(folder, {}, first)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"0": "team/a/main\n", "1": ""}
    kept = (folder / "1").stat().st_mtime_ns
    second = mapping(INVENTORY, [])
    write(folder, first, second)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"0": "", "1": ""}
    assert (folder / "1").stat().st_mtime_ns == kept, "it has not changed"
    write(folder, second, {"0": ""})
    assert [path.name for path in folder.iterdir()] == ["0"]
