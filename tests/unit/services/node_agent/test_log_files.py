"""Logs that are cut while their programs write on."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.log_files import LOG_BYTES, LOG_KEPT_BYTES, shorten, shorten_all

LINE = b"[2026-01-01 00:00:00.000 Control 1] a question\n"
LONG = LINE * (LOG_BYTES // len(LINE) + 100)


def test_each_log_of_a_folder_is_cut_to_its_last_lines(tmp_path: Path) -> None:
    for name in ("control.log", "server.log"):
        (tmp_path / name).write_bytes(LONG + b"the last\n")
    (tmp_path / "short.log").write_bytes(LINE)
    shorten_all(tmp_path)
    for name in ("control.log", "server.log"):
        kept = (tmp_path / name).read_bytes()
        assert len(kept) <= LOG_KEPT_BYTES
        assert set(kept.splitlines(keepends=True)) == {LINE, b"the last\n"}
    assert (tmp_path / "short.log").read_bytes() == LINE
    shorten_all(tmp_path / "of a daemon that has ended")


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(LONG)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "control.log").symlink_to(other)
    shorten_all(tmp_path / "log")
    with pytest.raises(OSError, match="symbolic links"):
        shorten(tmp_path / "log" / "control.log")
    assert other.read_bytes() == LONG


def test_a_program_that_goes_on_where_it_was_loses_nothing_more(tmp_path: Path) -> None:
    """It leaves a hole before its next lines, which takes no room."""
    log = tmp_path / "control.log"
    with log.open("wb", buffering=0) as program:
        program.write(LONG)
        shorten(log)
        for _ in range(3):
            program.write(b"the next\n")
            shorten(log)
    assert log.read_bytes().endswith(b"the next\n" * 3)
    assert log.read_bytes().startswith(LINE)
    assert log.stat().st_blocks * 512 < 2 * LOG_KEPT_BYTES
