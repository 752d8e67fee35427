from __future__ import annotations

from pathlib import Path

from services.placement.jit import copy_compiled


def folder(path: Path, **files: str) -> Path:
    for name, text in files.items():
        (path / "deep").mkdir(parents=True, exist_ok=True)
        (path / "deep" / name).write_text(text)
    return path


def variables(source: Path, target: Path) -> dict[str, str]:
    return {"KERF_COMPILED": str(source), "NUMBA_CACHE_DIR": str(target)}


def test_an_empty_cache_gets_what_the_image_compiled(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "image", loop="machine code"), tmp_path / "cache"
    target.mkdir()
    assert copy_compiled(variables(source, target))
    assert (target / "deep/loop").read_text() == "machine code"


def test_a_cache_that_has_something_is_left_alone(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "image", loop="new"), folder(tmp_path / "cache", loop="own")
    assert not copy_compiled(variables(source, target))
    assert (target / "deep/loop").read_text() == "own"


def test_outside_of_an_image_nothing_is_copied(tmp_path: Path) -> None:
    assert not copy_compiled({"NUMBA_CACHE_DIR": str(tmp_path)})
    assert not copy_compiled({"KERF_COMPILED": str(tmp_path)})


def test_a_cache_that_cannot_be_written_is_no_reason_not_to_start(tmp_path: Path) -> None:
    """Every start then compiles for itself."""
    file = tmp_path / "a file"
    file.touch()
    assert not copy_compiled(variables(folder(tmp_path / "image", loop="x"), file / "cache"))
