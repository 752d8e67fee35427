"""The commands of docs/migrate.md, run as they stand there, with a name for each word in capitals."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/migrate.md"
WITHIN_S = 240.0


class Guide:
    """`run` takes a heading and the number of one of its `sh` blocks. `left`: blocks that nothing has run yet."""

    def __init__(self, folder: Path, kubectl: Path, kubeconfig: Path) -> None:
        self._folder, self._env = folder, os.environ | {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
        tools = folder / "bin"
        tools.mkdir()
        (tools / "kubectl").symlink_to(kubectl)
        kerf = tools / "kerf"
        kerf.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m cli "$@"\n')
        kerf.chmod(0o755)
        self._env["PATH"] = f"{tools}:{os.environ['PATH']}"
        self._blocks = {
            (heading, number): block
            for heading, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
            for number, block in enumerate(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
        }
        self.left = set(self._blocks)

    def set_nats(self, url: str) -> None:
        self._env["KERF_NATS_URL"] = url

    def take(self, heading: str, number: int, begins: str) -> None:
        """A block that the test does in another way, such as helm's: what it says is checked."""
        assert self._blocks[heading, number].startswith(begins), self._blocks[heading, number]
        self.left.discard((heading, number))

    async def run(self, heading: str, number: int, **names: str) -> str:
        """What the block prints. Fails where a command fails."""
        text = self._blocks[heading, number]
        for name, value in names.items():
            assert re.search(rf"\b{name}\b", text), f"{name} is not in {text!r}"
            text = re.sub(rf"\b{name}\b", value, text)
        self.left.discard((heading, number))
        return await self.shell(text)

    async def shell(self, text: str, given: str = "") -> str:
        process = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", text, cwd=self._folder, env=self._env,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(process.communicate(given.encode()), WITHIN_S)
        except TimeoutError:
            process.kill()
            out, err = await process.communicate()
            raise AssertionError(f"not within {WITHIN_S:g} s: {text}\n{out.decode()}\n{err.decode()}") from None
        assert process.returncode == 0, f"{text}\n{out.decode()}\n{err.decode()}"
        return out.decode()
