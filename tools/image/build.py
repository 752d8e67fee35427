"""Runs a Dockerfile's instructions in overlay mounts; what each one wrote is kept by the hash of what made it."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tools.image.dockerfile import Instruction, Stage, copy, environment, needed

_KEPT = 40
"""Results of instructions that stay in the cache, the ones used last."""
_SAID = 4000
"""Characters of what a failed instruction printed last."""
_UNSHARE = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
_HOST_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Mounted over the image's own while an instruction runs, so that it reaches the registries that this machine does."""
_HOST_VARIABLES = ("PIP_", "SSL_CERT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_SLIM = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/share/lintian/*")


class BuildError(RuntimeError):
    """An instruction failed, or this machine cannot build images; the text says which and why."""


class Root(msgspec.Struct, frozen=True):
    """A file system: folders that are laid over each other, the lowest first, and the hash of what made it."""

    layers: tuple[Path, ...]
    key: str
    variables: dict[str, str]
    folder: str = "/"


def why_not() -> str:
    """A sentence why no image can be built here; empty where it can."""
    if os.geteuid() != 0:
        return "building an image without an engine needs root"
    missing = [tool for tool in ("mmdebstrap", "unshare", "mount") if shutil.which(tool) is None]
    return f"there is no {' and no '.join(missing)} on PATH" if missing else ""


class Builder:
    """Builds the stages that the last one needs. `context` is COPY's folder, `ignore` the text of .dockerignore."""

    def __init__(self, context: Path, ignore: str, cache: Path) -> None:
        self._context, self._cache = context, cache
        lines = [line.strip() for line in ignore.splitlines() if line.strip() and not line.startswith("#")]
        self._allowed = [line[1:] for line in lines if line.startswith("!")]
        self._excluded = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
        self._used: set[Path] = set()
        cache.mkdir(parents=True, exist_ok=True)

    def build(self, stages: tuple[Stage, ...]) -> Root:
        """The file system of the last stage. Raises BuildError."""
        if reason := why_not():
            raise BuildError(reason)
        roots: dict[str, Root] = {}
        for stage in needed(stages):
            root = roots.get(stage.base) or self._base(stage.base)
            for instruction in stage.instructions:
                root = self._after(instruction, root, roots)
            roots[stage.name] = root
        self._clean()
        return roots[stages[-1].name]

    def mounted(self, root: Root, script: str) -> None:
        """Runs a shell script of this machine with the file system, read-only, at $ROOT. Raises BuildError."""
        self._run(f"mount -t overlay overlay -o lowerdir={_lower(root)} $ROOT\n{script}", {})

    def _base(self, name: str) -> Root:
        suite = name.removeprefix("debian:").removesuffix("-slim")
        if name != f"debian:{suite}-slim":
            raise BuildError(f"FROM {name}: without an engine a base image is debian:SUITE-slim or an earlier stage")
        key = _hash("base", name, "3")

        def make(layer: Path) -> None:
            options = [f"--dpkgopt=path-exclude={path}" for path in _SLIM]
            options.append('--aptopt=APT::Install-Recommends "false"')
            if suite != "bullseye":
                # /usr is merged from the start, else a package comes that does it later, and all of Perl with it.
                options += ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "--include=usr-is-merged"]
            command = [
                "mmdebstrap",
                "--variant=minbase",
                "--include=ca-certificates",
                "--mode=root",
                "--quiet",
                *options,
            ]
            subprocess.run([*command, "--format=directory", suite, str(layer)], check=True, stdout=sys.stderr)
            for rest in ("var/lib/apt/lists", "var/cache/apt"):
                shutil.rmtree(layer / rest, ignore_errors=True)
                (layer / rest).mkdir(parents=True)

        return Root((self._made(key, make, f"FROM {name}"),), key, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})

    def _after(self, instruction: Instruction, root: Root, roots: dict[str, Root]) -> Root:
        if instruction.word == "ENV":
            return msgspec.structs.replace(root, variables=environment(instruction.text, root.variables))
        if instruction.word not in ("RUN", "COPY", "WORKDIR"):
            return root
        if instruction.word == "WORKDIR":
            root = msgspec.structs.replace(root, folder=instruction.text)
        variables = "".join(f"{n}={v}\n" for n, v in sorted(root.variables.items()))
        content = self._content(instruction, roots) if instruction.word == "COPY" else ""
        key = _hash(root.key, instruction.word, instruction.text, root.folder, variables, content)

        def make(layer: Path) -> None:
            work = layer.with_suffix(".work")
            work.mkdir()
            mount = f"mount -t overlay overlay -o lowerdir={_lower(root)},upperdir={layer},workdir={work} $ROOT\n"
            try:
                self._run(mount + self._script(instruction, root, roots), root.variables)
            finally:
                shutil.rmtree(work, ignore_errors=True)

        layer = self._made(key, make, f"{instruction.word} {instruction.text}")
        return msgspec.structs.replace(root, layers=(*root.layers, layer), key=key)

    def _script(self, instruction: Instruction, root: Root, roots: dict[str, Root]) -> str:
        if instruction.word == "WORKDIR":
            return f"mkdir -p $ROOT{shlex.quote(root.folder)}"
        if instruction.word == "RUN":
            lines = ["mount -t proc proc $ROOT/proc", "mount --rbind /dev $ROOT/dev"]
            for file in _HOST_FILES:
                if Path(file).exists():
                    # A mount point that has to be made for it goes again, so that nothing of it is in the image.
                    lines += [
                        f"if [ ! -e $ROOT{file} ]; then mkdir -p $ROOT{Path(file).parent}; touch $ROOT{file}; "
                        f'MADE="$MADE $ROOT{file}"; fi',
                        f"mount --bind {file} $ROOT{file}",
                    ]
            command = f"cd {shlex.quote(root.folder)} && {instruction.text}"
            return "\n".join(
                [*lines, "STATUS=0", f"chroot $ROOT /bin/sh -ec {shlex.quote(command)} || STATUS=$?",
                 'for FILE in $MADE; do umount "$FILE"; rm "$FILE"; done', "exit $STATUS"]
            )  # fmt: skip
        given = copy(instruction)
        target = given.target if given.target.startswith("/") else f"{root.folder.rstrip('/')}/{given.target}"
        lines, top = [], shlex.quote(str(self._context))
        if given.stage:
            lines, top = [f"mount -t overlay overlay -o lowerdir={_lower(roots[given.stage])} $FROM"], "$FROM"
        into = f"$ROOT{shlex.quote(target)}"
        for source in given.sources:
            # As Docker does: of a folder what is in it, into the target; a file into it only where it is a folder.
            path, skipped = (
                f"{top}/{shlex.quote(source.lstrip('/'))}",
                " ".join(f"--exclude={shlex.quote(pattern)}" for pattern in self._excluded),
            )
            folder = into if target.endswith("/") or len(given.sources) > 1 else f"$(dirname {into})"
            lines.append(
                f"if [ -d {path} ]; then mkdir -p {into}; tar -C {path} {'' if given.stage else skipped} "
                f"--sort=name --owner=0 --group=0 -cf - . | tar -C {into} -xf -; "
                f"else mkdir -p {folder}; cp -a --no-preserve=ownership {path} {into}; fi"
            )
        return "\n".join(lines)

    def _content(self, instruction: Instruction, roots: dict[str, Root]) -> str:
        """The hash of what a COPY brings. Raises BuildError where .dockerignore keeps it out."""
        given = copy(instruction)
        if given.stage:
            if given.stage not in roots:
                raise BuildError(f"line {instruction.line}: there is no earlier stage {given.stage}")
            return roots[given.stage].key
        found = hashlib.sha256()
        for source in given.sources:
            if not any(source == a or source.startswith(f"{a}/") for a in self._allowed):
                raise BuildError(f"line {instruction.line}: {source} is kept out by .dockerignore")
            for path in self._files(self._context / source):
                mode = path.stat().st_mode
                found.update(f"{path.relative_to(self._context)} {mode:o} ".encode() + path.read_bytes() + b"\0")
        return found.hexdigest()

    def _files(self, path: Path) -> Iterator[Path]:
        if path.is_file():
            yield path
            return
        for each in sorted(path.iterdir()):
            if not any(fnmatch.fnmatch(each.name, pattern) for pattern in self._excluded):
                yield from self._files(each)

    def _made(self, key: str, make: Callable[[Path], None], what: str) -> Path:
        layer = self._cache / key
        self._used.add(layer)
        if layer.exists():
            os.utime(layer.with_suffix(".used"))
            return layer
        sys.stderr.write(f"image: {what[:110]}\n")
        beside = self._cache / f"{key}.{os.getpid()}"
        beside.mkdir()
        try:
            make(beside)
        except (subprocess.CalledProcessError, BuildError) as error:
            shutil.rmtree(beside, ignore_errors=True)
            raise BuildError(f"{what}: {error}") from None
        beside.rename(layer)
        layer.with_suffix(".used").touch()
        return layer

    def _clean(self) -> None:
        """Removes the results that were used longest ago."""
        marks = sorted(self._cache.glob("*.used"), key=lambda mark: mark.stat().st_mtime, reverse=True)
        for mark in marks[_KEPT:]:
            layer = mark.with_suffix("")
            if layer not in self._used:
                mark.unlink()
                shutil.rmtree(layer, ignore_errors=True)

    def _run(self, script: str, variables: dict[str, str]) -> None:
        passed = {n: v for n, v in os.environ.items() if n.startswith(_HOST_VARIABLES)}
        # The mount points stand in a tmpfs of the script's own, and are gone with it.
        begin = "set -eu\nmount -t tmpfs none /mnt\nmkdir /mnt/root /mnt/from\nROOT=/mnt/root FROM=/mnt/from MADE=\n"
        environ = {"HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", **passed, **variables}
        environ["PATH"] = f"{variables.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin".lstrip(":")
        done = subprocess.run(
            [*_UNSHARE, "sh", "-c", begin + script],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            said = done.stdout.decode(errors="replace")[-_SAID:]
            raise BuildError(f"ended with status {done.returncode}\n{said}")


def _lower(root: Root) -> str:
    return ":".join(str(layer) for layer in reversed(root.layers))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
