"""Lists the functions of the CUDA driver API from NVIDIA's headers, which are not redistributed here; their names are.

    python -m tools.driver_api WHEEL...      writes native/interposer/driver_api/names.txt

`pip download --no-deps` fetches the wheels that WHEELS names.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "native" / "interposer" / "driver_api" / "names.txt"
WHEELS = ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-runtime==13.5.37")
"""The requirements of the wheels from which the committed list was made."""
_HEADER = """\
# The functions of the CUDA driver API: exported name, plain name (as cuGetProcAddress takes it), the API version from
# which cuGetProcAddress returns this form, and the major versions of CUDA whose headers declare it.
# Made by `python -m tools.driver_api` from cuda.h and cudaTypedefs.h of the wheels
# {wheels}.
"""
_STREAMS = re.compile(r"_pt(?:sz|ds)$")


class Function(msgspec.Struct, frozen=True, order=True):
    """One exported function of the driver."""

    name: str
    plain: str
    """The name without version: cuMemAlloc of cuMemAlloc_v2."""
    version: int
    """The first API version for which cuGetProcAddress returns it, for example 12000."""

    @property
    def form(self) -> str:
        """The name without the ending of the variant for per-thread default streams."""
        return _STREAMS.sub("", self.name)

    @property
    def per_thread(self) -> bool:
        return self.form != self.name


def functions(cuda: str, typedefs: str) -> tuple[Function, ...]:
    """Returns the functions that the texts of cuda.h and cudaTypedefs.h declare, sorted.

    cuda.h declares the exported names: the newest form by a macro, the others in its last part. cudaTypedefs.h has the
    versions: the n-th form of a function belongs to its n-th version. Raises ValueError if their numbers differ.
    """
    versions: dict[tuple[str, str], set[int]] = defaultdict(set)
    for plain, version, streams in re.findall(r"PFN_(cu\w+?)_v(\d{4,5})(_pt\w\w)?\b", typedefs):
        versions[plain, streams].add(int(version))
    plains = {plain for plain, _ in versions}
    forms: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name in exported(cuda):
        form = _STREAMS.sub("", name)
        plain = form if form in plains else re.sub(r"_v\d$", "", form)
        forms[plain, name[len(form) :]].add(name)
    for key in forms.keys() | versions.keys():
        if len(forms[key]) != len(versions[key]):
            raise ValueError(f"{key[0]}: {sorted(forms[key])} in cuda.h, {sorted(versions[key])} in cudaTypedefs.h")
    return tuple(
        sorted(
            Function(name=name, plain=plain, version=version)
            for (plain, streams), names in forms.items()
            for name, version in zip(sorted(names), sorted(versions[plain, streams]), strict=True)
        )
    )


def exported(cuda: str) -> set[str]:
    """The names that the library exports, of the text of cuda.h."""
    parts = re.split(r"#if defined\(__CUDA_API_VERSION_INTERNAL\)\s*\n\s*#undef", cuda, maxsplit=1)
    newest = {
        plain: (exact, f"_pt{streams.lower()}" if streams else "")
        for plain, streams, exact in re.findall(r"#\s*define (cu\w+)\s+(?:__CUDA_API_PT(\w\w)\()?(cu\w+)\)?", parts[0])
    }
    names = set(re.findall(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\(", "".join(parts[1:])))
    for plain in re.findall(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\(", parts[0]):
        exact, streams = newest.get(plain, (plain, ""))
        names |= {exact, exact + streams}
    return names


def of_wheel(path: Path) -> tuple[str, tuple[Function, ...]]:
    """The major version of CUDA, and the functions, of a wheel. Raises ValueError if it has no driver headers."""
    with zipfile.ZipFile(path) as wheel:
        texts = {
            Path(name).name: wheel.read(name).decode()
            for name in wheel.namelist()
            if name.endswith(("/include/cuda.h", "/include/cudaTypedefs.h"))
        }
    found = re.search(r"#define CUDA_VERSION (\d+)", texts.get("cuda.h", ""))
    if found is None or "cudaTypedefs.h" not in texts:
        raise ValueError(f"{path.name} has no cuda.h with cudaTypedefs.h: take one of {', '.join(WHEELS)}")
    return str(int(found[1]) // 1000), functions(texts["cuda.h"], texts["cudaTypedefs.h"])


def merged(by_major: Mapping[str, Iterable[Function]]) -> dict[Function, tuple[str, ...]]:
    """The major versions that have each function. Raises ValueError if two headers disagree about one."""
    majors: dict[Function, list[str]] = defaultdict(list)
    for major, listed in sorted(by_major.items()):
        for function in listed:
            majors[function].append(major)
    names = [function.name for function in majors]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the headers disagree about {', '.join(twice)}")
    return {function: tuple(majors[function]) for function in sorted(majors)}


def render(listed: Mapping[Function, tuple[str, ...]]) -> str:
    lines = (f"{f.name} {f.plain} {f.version} {','.join(majors)}\n" for f, majors in listed.items())
    return _HEADER.format(wheels=" and ".join(WHEELS)) + "".join(lines)


def parse(text: str) -> dict[Function, tuple[str, ...]]:
    """Reads what `render` has written."""
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {
        Function(name=name, plain=plain, version=int(version)): tuple(majors.split(","))
        for name, plain, version, majors in rows
    }


def main(wheels: Iterable[str]) -> None:
    by_major = dict(of_wheel(Path(wheel)) for wheel in wheels)
    if not by_major:
        raise SystemExit(f"usage: python -m tools.driver_api WHEEL..., of {' and '.join(WHEELS)}")
    LIST.write_text(render(merged(by_major)))


if __name__ == "__main__":
    main(sys.argv[1:])
