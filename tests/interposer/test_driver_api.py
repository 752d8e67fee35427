"""The table of the driver API: every function of CUDA 12 and 13 is handled as native/interposer/driver_api says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from tests.support.native import BUILD
from tools import driver_api
from tools.driver_api import Function

ROOT = Path(__file__).resolve().parents[2]
INTERPOSER = ROOT / "native" / "interposer"
TABLE = INTERPOSER / "driver_api" / "handling.toml"
FUNCTIONS = driver_api.parse(driver_api.LIST.read_text())
PER_THREAD = 2
"""CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM."""
REQUESTED = (11040, 12000, 12090, 13000, 13050)
"""API versions that programs request, besides the first of each function."""


class Group(msgspec.Struct, forbid_unknown_fields=True):
    does: str
    handling: str
    functions: tuple[str, ...]
    why: str = ""
    test: str = ""


GROUPS = msgspec.convert(tomllib.loads(TABLE.read_text())["group"], tuple[Group, ...])
ROW = {form: group for group in GROUPS for form in group.functions}


def row(function: Function) -> Group:
    return ROW.get(function.name) or ROW[function.form]


ANSWERS = {"hooked": "k", "passes": "o", "refused": "-"}


def hooks(kind: str) -> list[tuple[str, ...]]:
    return re.findall(rf"^[{kind}]\(([^)]*)\)", (INTERPOSER / "hooks.h").read_text(), re.MULTILINE)


def answers(built: Path, folder: Path, asked: Iterable[tuple[str, str, int, int]]) -> list[str]:
    """Who answers dlsym and cuGetProcAddress, under the interposer, on a driver that exports all functions."""
    (folder / "driver.c").write_text(driver())
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1,-Bsymbolic", "-o", "libcuda.so.1", "driver.c"],
        check=True,
        cwd=folder,
    )
    preload = str(built / "enforcement" / "test" / "libkerf.so")
    ran = subprocess.run(
        [str(built / "programs" / "functions")],
        env={"LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": preload, "KERF_DIRECTORY": str(folder)},
        input="".join(f"{name} {plain} {version} {flags}\n" for name, plain, version, flags in asked),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ran.stdout.split()


def driver() -> str:
    """A driver in C that has all functions, and whose cuGetProcAddress answers as the documentation says."""
    special = {"cuGetProcAddress", "cuGetProcAddress_v2"}
    lines = ["#include <string.h>", *(f"int {f.name}() {{ return 0; }}" for f in FUNCTIONS if f.name not in special)]
    lines += ["int cuGetProcAddress(), cuGetProcAddress_v2();"]
    lines += ["static const struct { const char *plain; int version, own; void *at; } all[] = {"]
    lines += [f'{{"{f.plain}", {f.version}, {int(f.per_thread)}, (void *){f.name}}},' for f in FUNCTIONS]
    lines += [
        "};",
        "int cuGetProcAddress_v2(const char *name, void **to, int version, unsigned long flags, int *status) {",
        "int best = -1;",
        "for (int i = 0; i < (int)(sizeof all / sizeof *all); i++) {",
        "if (strcmp(all[i].plain, name) || all[i].version > version || (all[i].own && !(flags & 2))) continue;",
        "if (best < 0 || all[i].own > all[best].own",
        "|| (all[i].own == all[best].own && all[i].version > all[best].version)) best = i;",
        "}",
        "*to = best < 0 ? 0 : all[best].at;",
        "return best < 0 ? 500 : 0;",
        "}",
        "int cuGetProcAddress(const char *name, void **to, int version, unsigned long flags) {",
        "int status; return cuGetProcAddress_v2(name, to, version, flags, &status); }",
    ]
    return "\n".join(lines)


def answered(plain: str, version: int, flags: int) -> Function | None:
    """The form that the driver returns for a version."""
    found = [f for f in FUNCTIONS if f.plain == plain and f.version <= version and (flags or not f.per_thread)]
    return max(found, key=lambda f: (f.per_thread, f.version), default=None)


def test_every_function_has_one_row() -> None:
    listed = [form for group in GROUPS for form in group.functions]
    variants = {f.name for f in FUNCTIONS if f.name in ROW} - {f.form for f in FUNCTIONS}
    assert sorted(listed) == sorted({f.form for f in FUNCTIONS} | variants)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.does}-{group.handling}-{group.functions[0]}")
def test_a_row_says_why_and_names_a_test(group: Group) -> None:
    assert group.handling in ANSWERS
    assert group.does in {
        "allocates", "frees", "launches", "synchronises", "queries memory", "contexts", "other",
    }  # fmt: skip
    assert bool(group.why) == (group.handling != "hooked")
    if group.does == "other":
        return
    path, _, name = group.test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), group.test


def test_the_hooks_have_the_versions_of_the_headers() -> None:
    ours = {Function(name=name, plain=plain, version=int(version)) for plain, version, name in map(split, hooks("HT"))}
    shown = {f for f in FUNCTIONS if row(f).handling == "hooked" and f.plain != "cuGetProcAddress"}
    renamed = Function(name="cuGraphInstantiateWithFlags", plain="cuGraphInstantiate", version=12000)
    assert ours == shown | {renamed}, "what cuda.h of CUDA 12 calls cuGraphInstantiate"
    assert {name for (name,) in map(split, hooks("F"))} <= {f.name for f in FUNCTIONS}


def split(arguments: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in arguments.split(","))


def test_every_function_is_found_as_the_table_says(built: Path, tmp_path: Path) -> None:
    """By its exact name, and by the version from which cuGetProcAddress returns it."""
    asked = [(f.name, f.plain, f.version, PER_THREAD if f.per_thread else 0) for f in FUNCTIONS]
    found = dict(zip(FUNCTIONS, answers(built, tmp_path, asked), strict=True))
    original = {name for (name,) in map(split, hooks("F"))}
    wrong = {
        f.name: (row(f).handling, answer)
        for f, answer in found.items()
        if answer != (ANSWERS[row(f).handling] * 2 if f.name not in original else "k-")
    }
    assert not wrong, "the first letter is dlsym's answer: k Kerf, o the driver, - none"


def test_no_requested_version_returns_a_form_that_is_not_counted(built: Path, tmp_path: Path) -> None:
    """A program requests the version for which it was compiled, and gets the form that the driver had then."""
    plains = sorted({f.plain for f in FUNCTIONS})
    asked = [(plain, version, flags) for plain in plains for version in REQUESTED for flags in (0, PER_THREAD)]
    found = answers(built, tmp_path, (("cuInit", *each) for each in asked))
    wrong = []
    for (plain, version, flags), answer in zip(asked, found, strict=True):
        form = answered(plain, version, flags)
        expected = "-" if form is None else ANSWERS[row(form).handling]
        if answer[1] != expected:
            wrong.append((plain, version, flags, answer[1], expected))
    assert not wrong


# --- the headers --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheels() -> list[Path]:
    """The wheels with the headers, from build/cuda_headers, or downloaded to there. Skips if they cannot be had, unless
    REQUIRE_CUDA_HEADERS=1."""
    folder = BUILD.parent / "cuda_headers"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    found = []
    for wheel in driver_api.WHEELS:
        name, _, version = wheel.partition("==")
        pattern = f"{name.replace('-', '_')}-{version}-*.whl"
        if not any(folder.glob(pattern)):
            got = subprocess.run([*command, "--dest", str(folder), wheel], check=False, capture_output=True, text=True)
            if got.returncode and os.environ.get("REQUIRE_CUDA_HEADERS") != "1":
                pytest.skip(f"{wheel} cannot be downloaded")
            assert not got.returncode, got.stderr
        found.append(next(folder.glob(pattern)))
    return found


def test_the_list_equals_the_headers(wheels: list[Path]) -> None:
    by_major = dict(map(driver_api.of_wheel, wheels))
    assert sorted(by_major) == ["12", "13"]
    assert driver_api.merged(by_major) == FUNCTIONS
    assert driver_api.render(FUNCTIONS) == driver_api.LIST.read_text()


def test_the_remote_client_names_the_results_of_the_headers(wheels: list[Path]) -> None:
    expected: dict[str, str] = {}
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith("/include/cuda.h"))
            header = wheel.read(name).decode()
        results = header[header.index("typedef enum cudaError_enum") : header.index("} CUresult;")]
        expected |= dict(re.findall(r"^\s*(CUDA_\w+)\s*=\s*(\d+)", results, re.MULTILINE))
    named = re.findall(r'\{(\d+), "(\w+)"', (INTERPOSER.parent / "remote" / "results.c").read_text())
    assert {name: code for code, name in named} == expected


OURS = {
    "alloc_prop_t": "CUmemAllocationProp",
    "pool_prop_t": "CUmemPoolProps",
    "array_desc_t": "CUDA_ARRAY_DESCRIPTOR",
    "array3d_desc_t": "CUDA_ARRAY3D_DESCRIPTOR",
    "launch_config_t": "CUlaunchConfig",
    "launch_attribute_t": "CUlaunchAttribute",
    "launch_params_t": "CUDA_LAUNCH_PARAMS",
    "kernel_node_t": "CUDA_KERNEL_NODE_PARAMS_v2",
    "alloc_node_t": "CUDA_MEM_ALLOC_NODE_PARAMS",
    "graph_node_t": "CUgraphNodeParams",
    "map_info_t": "CUarrayMapInfo",
    "ipc_t": "CUipcMemHandle",
    "external_desc_t": "CUDA_EXTERNAL_MEMORY_HANDLE_DESC",
}
"""The structures of driver.h, and their names in cuda.h."""
FIELDS = {
    "alloc_prop_t.location": "location",
    "pool_prop_t.location": "location",
    "array3d_desc_t.flags": "Flags",
    "launch_config_t.stream": "hStream",
    "launch_config_t.attrs": "attrs",
    "launch_config_t.attr_count": "numAttrs",
    "launch_attribute_t.value": "value",
    "launch_params_t.stream": "hStream",
    "alloc_node_t.bytes": "bytesize",
    "graph_node_t.alloc": "alloc",
    "map_info_t.operation": "memOperationType",
    "map_info_t.handle": "memHandle",
    "external_desc_t.size": "size",
}
CONSTANTS = {
    "CUDA_ERROR_OUT_OF_MEMORY": "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
    "CUDA_ERROR_SYSTEM_NOT_READY": "CUDA_ERROR_SYSTEM_NOT_READY",
    "CUDA_ERROR_CAPTURED_EVENT": "CUDA_ERROR_CAPTURED_EVENT",
    "LOCATION_DEVICE": "CU_MEM_LOCATION_TYPE_DEVICE",
    "NODE_GRAPH": "CU_GRAPH_NODE_TYPE_GRAPH",
    "NODE_MEM_ALLOC": "CU_GRAPH_NODE_TYPE_MEM_ALLOC",
    "GRAPH_RESERVED_CURRENT": "CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT",
    "POOL_RESERVED_CURRENT": "CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT",
    "POOL_USED_CURRENT": "CU_MEMPOOL_ATTR_USED_MEM_CURRENT",
    "POOL_RELEASE_THRESHOLD": "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD",
    "PROC_PER_THREAD": "CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM",
    "ARRAY_SPARSE": "CUDA_ARRAY3D_SPARSE",
    "ARRAY_DEFERRED": "CUDA_ARRAY3D_DEFERRED_MAPPING",
    "LIMIT_HEAP": "CU_LIMIT_MALLOC_HEAP_SIZE",
    "LAUNCH_PROGRAMMATIC_SERIALIZATION": "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
}


def printed(folder: Path, header: str, include: Path, values: Iterable[str]) -> list[str]:
    """The values of C expressions with this header."""
    lines = "".join(f'printf("%zu\\n", (size_t)({value}));' for value in values)
    (folder / "print.c").write_text(
        f'#include <stdio.h>\n#include <stddef.h>\n#include "{header}"\nint main(void) {{ {lines} return 0; }}\n'
    )
    subprocess.run(["cc", "-w", f"-I{include}", "-o", "print", "print.c"], check=True, cwd=folder)
    return subprocess.run([str(folder / "print")], check=True, capture_output=True, text=True).stdout.split()


OF_OTHER_HEADERS = re.compile(
    r"cu(GL|WGL|VDPAU|D3D\d+|EGL|Profiler|GraphicsGL|GraphicsEGL|GraphicsVDPAU|GraphicsD3D\d+|GraphicsResourceGetMappedEgl)"
)
"""Functions of cudaGL.h and the like, for graphics libraries that are not mounted, and of the profiler."""
UNDOCUMENTED = {"cuSubgridCreate", "cuSubgridWorksetCreate", "cuSubgridWorkerGridCreate"}
"""What the runtime of CUDA 13.5 requests and no header declares. It passes: what it does is not known."""


@pytest.mark.parametrize("place", range(len(driver_api.WHEELS)), ids=driver_api.WHEELS)
def test_the_cuda_runtime_requests_only_functions_and_versions_of_the_list(
    wheels: list[Path], tmp_path: Path, place: int
) -> None:
    """The real runtime of the wheel, on a driver that writes down what is requested and then does nothing."""
    with zipfile.ZipFile(wheels[place]) as wheel:
        (name,) = (name for name in wheel.namelist() if re.search(r"/libcudart\.so\.\d+$", name))
        (tmp_path / "libcudart.so").write_bytes(wheel.read(name))
    logged = driver().replace("int best = -1;", 'int best = -1; printf("%s %d\\n", name, version); fflush(stdout);', 1)
    (tmp_path / "driver.c").write_text(f"#include <stdio.h>\n{logged}")
    flags = ["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1,-Bsymbolic"]
    subprocess.run(["cc", *flags, "-o", "libcuda.so.1", "driver.c"], check=True, cwd=tmp_path)
    call = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))"
    ran = subprocess.run(
        [sys.executable, "-c", call, str(tmp_path / "libcudart.so")],
        env={"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    requested = {(name, int(version)) for name, version in re.findall(r"^(cu\w+) (\d+)$", ran.stdout, re.MULTILINE)}
    assert len(requested) > 300, "it looks everything up at once, before it finds out that this driver does nothing"
    listed = {(f.plain, f.version) for f in FUNCTIONS}
    unlisted = {name for name, version in requested - listed if not OF_OTHER_HEADERS.match(name)}
    assert unlisted <= UNDOCUMENTED


@pytest.mark.parametrize("place", range(len(driver_api.WHEELS)), ids=driver_api.WHEELS)
def test_the_declarations_of_the_library_are_those_of_the_headers(
    wheels: list[Path], tmp_path: Path, place: int
) -> None:
    with zipfile.ZipFile(wheels[place]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/include/cuda.h"))
        (tmp_path / "cuda.h").write_bytes(wheel.read(name))
    offsets = [path.split(".") for path in FIELDS]
    ours = [f"sizeof({name})" for name in OURS] + [f"offsetof({name}, {field})" for name, field in offsets]
    theirs = [f"sizeof({name})" for name in OURS.values()]
    theirs += [f"offsetof({OURS[name]}, {FIELDS[f'{name}.{field}']})" for name, field in offsets]
    found = printed(tmp_path, "driver.h", INTERPOSER, [*ours, *CONSTANTS])
    expected = printed(tmp_path, "cuda.h", tmp_path, [*theirs, *CONSTANTS.values()])
    assert dict(zip([*ours, *CONSTANTS], found, strict=True)) == dict(zip([*ours, *CONSTANTS], expected, strict=True))
