"""The command by which operators delete the log, as docs/operators.md has it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tarfile
from pathlib import Path

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.contracts.permissions import USERS

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "k8s" / "nats.conf"


async def run(command: list[str], given: str = "", **more: str) -> tuple[int | None, bytes, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | more, cwd=ROOT
    )
    out, err = await process.communicate(given.encode())
    return process.returncode, out, err.decode()


async def test_the_command_deletes_the_log_and_placement_begins_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in USERS:
        monkeypatch.setenv(f"KERF_NATS_{user.name.upper()}", f"secret-of-{user.name}")
    command = [sys.executable, "-m", "services.placement.delete_log"]
    assert " ".join(["python", *command[1:]]) in (ROOT / "docs/operators.md").read_text()
    async with EmbeddedServer(config_file=CONF) as server:
        of_the_pod = {"KERF_NATS_URL": f"nats://metrics:secret-of-metrics@127.0.0.1:{server.port}"}
        placement = f"nats://placement:secret-of-placement@127.0.0.1:{server.port}"
        async with await NatsBus.connect(placement, inbox_prefix="_INBOX_placement") as bus:
            await provision(bus)
            append = {"fence_subject": subjects.LOG_TERM, "fence_sequence": 0}
            before = await bus.append(subjects.LOG_TERM, b"{}", **append)
            for wrong in ("", "secret-of-metrics"):
                status, _, said = await run(command, wrong, **of_the_pod)
                assert status == 1
                assert said.startswith(("KERF_NATS_URL and", "KERF_LOG was not deleted"))
                assert "secret-of-metrics" not in said
            assert await bus.log_end() == before
            assert (await run(command, "secret-of-placement\n", **of_the_pod))[:2] == (0, b"KERF_LOG was deleted\n")
            assert (await run(command, "secret-of-placement\n", **of_the_pod))[:2] == (0, b"KERF_LOG was not there\n")
            assert await provision(bus) == (subjects.STREAM_LOG,)
            assert await bus.append(subjects.LOG_TERM, b"{}", **append) > before


async def test_the_command_of_the_runbook_copies_the_files_of_the_log(tmp_path: Path) -> None:
    """What a report of a double booking needs; no user of NATS may read the stream but placement's."""
    text = (ROOT / "docs/runbooks/KerfDoubleBooking.md").read_text()
    (program,) = re.findall(r'python -c "([^"]+)"', text)
    async with EmbeddedServer(store_dir=tmp_path / "data") as server:
        async with await NatsBus.connect(server.url) as bus:
            await provision(bus)
            await bus.append(subjects.LOG_TERM, b"{}", fence_subject=subjects.LOG_TERM, fence_sequence=0)
        mounted = program.replace("'/data'", f"'{tmp_path / 'data'}'")
        assert mounted != program
        status, out, said = await run([sys.executable, "-c", mounted])
    assert (status, said) == (0, "")
    archive = tmp_path / "log.tar.gz"
    archive.write_bytes(out)
    with tarfile.open(archive) as copied:
        assert any("/KERF_LOG/msgs/" in name and name.endswith(".blk") for name in copied.getnames())
