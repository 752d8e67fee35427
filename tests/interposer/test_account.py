"""The container's account, at moments that no test of whole processes can hold still."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "services" / "node_agent" / "interposer"


def test_a_slot_that_was_given_anew_during_a_repair_keeps_its_charge(tmp_path: Path) -> None:
    """Else its memory is on the device and not in the account, and the account falls below zero when it is freed."""
    program = tmp_path / "reclaim_race"
    sources = [str(HERE / "reclaim_race.c"), str(SOURCES / "account.c")]
    subprocess.run(["gcc", "-Wall", "-Werror", "-std=gnu11", f"-I{SOURCES}", "-o", str(program), *sources, "-lpthread"], check=True)
    said = subprocess.run([str(program)], check=True, capture_output=True, text=True, timeout=30).stdout
    assert said.split() == [str(10 << 30), "0"]
