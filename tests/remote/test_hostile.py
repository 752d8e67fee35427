"""Clients that are no library of ours: what they say reaches the driver only where it is true."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tests.interposer.node import Node
from tests.remote.raw import NAMES, Raw, parameters, words
from tests.remote.remote import FRAME, Server, mixed, until

Serve = Callable[..., Server]
INVALID_VALUE, INVALID_IMAGE, INVALID_HANDLE, NOT_SUPPORTED, CAPTURE_UNSUPPORTED = 1, 200, 400, 801, 900
NOWHERE = 0x4141414141


def test_a_launch_with_the_parameters_that_the_kernel_has_is_made(serve: Serve) -> None:
    client = Raw(serve())
    assert client.ask("cuMemcpyHtoD_v2", words(client.at, 8, 5, 8))[0] == 0
    assert client.launch(parameters([1000, client.at, 7])) == (0, b"")
    assert client.values("cuMemcpyDtoH_v2", words(8, client.at, 8)) == (mixed(5, 7),)


@pytest.mark.parametrize(
    ("values", "offsets"),
    [([], []), ([1000, 0], [0, 8]), ([1000, 0], [0, 8, 16]), ([1000, 0, 7], [0, 16, 8]), ([0] * 4, [0, 8, 16, 24])],
    ids=["none", "too few", "behind the end", "elsewhere", "too many"],
)
def test_a_launch_with_other_parameters_ends_its_process(serve: Serve, values: list[int], offsets: list[int]) -> None:
    """The driver would read the parameters of an earlier launch, or memory of the server."""
    client = Raw(serve())
    assert client.launch(parameters([1000, client.at, 7])) == (0, b"")
    assert client.launch(parameters(values, offsets)) == (None, b"")


def test_a_launch_without_parameters_of_a_kernel_that_has_some_is_an_error(serve: Serve) -> None:
    assert Raw(serve()).launch(words(0)) == (INVALID_VALUE, b"")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("cuCtxSetCurrent", words(NOWHERE)),
        ("cuEventSynchronize", words(NOWHERE)),
        ("cuStreamSynchronize", words(NOWHERE)),
        ("cuStreamDestroy_v2", words(NOWHERE)),
        ("cuGraphDestroy", words(NOWHERE)),
        ("cuGraphExecDestroy", words(NOWHERE)),
        ("cuModuleUnload", words(NOWHERE)),
        ("cuModuleGetFunction", words(1, NOWHERE, 4) + b"mix\0".ljust(8, b"\0")),
        ("cuFuncGetParamInfo", words(NOWHERE, 0, 1, 1)),
        ("cuLibraryUnload", words(NOWHERE)),
        ("cuKernelGetFunction", words(1, NOWHERE)),
        ("cuMemPoolDestroy", words(NOWHERE)),
        ("cuMemRelease", words(NOWHERE)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_handle_that_was_never_given_does_not_reach_the_driver(serve: Serve, name: str, body: bytes) -> None:
    client = Raw(serve())
    assert client.ask(name, body) == (INVALID_HANDLE, b"")
    assert client.launch(parameters([1000, client.at, 7])) == (0, b"")


def test_a_handle_is_of_one_kind_and_until_it_is_destroyed(serve: Serve) -> None:
    client = Raw(serve())
    (stream,) = client.values("cuStreamCreate", words(1, 0))
    assert client.ask("cuStreamSynchronize", words(stream))[0] == 0
    assert client.ask("cuModuleUnload", words(stream))[0] == INVALID_HANDLE
    assert client.ask("cuStreamDestroy_v2", words(stream))[0] == 0
    assert client.ask("cuStreamSynchronize", words(stream))[0] == INVALID_HANDLE
    assert client.ask("cuModuleUnload", words(client.module))[0] == 0
    assert client.ask("cuFuncGetParamInfo", words(client.mix, 0, 1, 1))[0] == INVALID_HANDLE


def test_a_context_that_ends_takes_its_handles_with_it(serve: Serve) -> None:
    client = Raw(serve())
    assert client.ask("cuDevicePrimaryCtxRelease_v2", words(0))[0] == 0
    assert client.ask("cuFuncGetParamInfo", words(client.mix, 0, 1, 1))[0] == INVALID_HANDLE


def test_a_graph_that_a_stream_captured_can_be_launched(serve: Serve) -> None:
    client = Raw(serve())
    (stream,) = client.values("cuStreamCreate", words(1, 1))
    assert client.ask("cuStreamBeginCapture_v2", words(stream, 1))[0] == 0
    (graph,) = client.values("cuStreamEndCapture", words(stream, 1))
    (executable,) = client.values("cuGraphInstantiateWithFlags", words(1, graph, 0))
    client.send("cuGraphLaunch", words(executable, stream))
    assert client.ask("cuStreamSynchronize", words(stream))[0] == 0


def test_a_count_that_wraps_is_malformed(serve: Serve) -> None:
    """12 * (1 + 2^62) is 12 in 64 bits: the driver would read as many elements behind the one that was sent."""
    client = Raw(serve())
    body = words(client.at, 4096, 12) + struct.pack("<IIII", 1, 0, 3, 0) + words(1 + 2**62)
    assert client.ask("cuMemSetAccess", body)[0] is None


FAT_BINARY, WRAPPER = 0xBA55ED50, 0x466243B1


@pytest.mark.parametrize(
    "image",
    [
        struct.pack("<IIQQ", WRAPPER, 1, NOWHERE, 0),
        struct.pack("<IHHQ", FAT_BINARY, 1, 16, 1 << 40),
        struct.pack("<IHHQ", FAT_BINARY, 1, 17, 8) + bytes(8),
        b"\x7fELF" + bytes(36) + struct.pack("<Q", 1 << 40) + bytes(16),
        b"\x7fELF\2\1\1",
    ],
    ids=["wrapper", "long fat binary", "fat binary with a long head", "sections elsewhere", "short ELF"],
)
def test_an_image_that_leads_outside_of_what_was_sent_is_refused(serve: Serve, image: bytes) -> None:
    client = Raw(serve())
    body = words(1, len(image)) + image + bytes(-len(image) % 8)
    assert client.ask("cuModuleLoadData", body) == (INVALID_IMAGE, b"")


@pytest.mark.parametrize("image", [struct.pack("<IHHQ", FAT_BINARY, 1, 16, 8) + bytes(8), b".version"])
def test_an_image_that_is_whole_is_loaded(serve: Serve, image: bytes) -> None:
    """The text has no 0 at its end: the server puts one there."""
    assert Raw(serve()).values("cuModuleLoadData", words(1, len(image)) + image)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("cuMemCreate", words(1, 2 << 20, 32) + struct.pack("<IIII", 1, 0, 2, 0) + bytes(16) + words(0)),
        ("cuMemPoolCreate", words(1, 88) + struct.pack("<IIII", 1, 0, 3, 0) + bytes(72)),
    ],
    ids=["memory", "pool"],
)
def test_memory_of_the_node_is_not_handed_out(serve: Serve, name: str, body: bytes) -> None:
    assert Raw(serve()).ask(name, body) == (NOT_SUPPORTED, b"")


def test_a_frame_and_an_answer_are_bounded(serve: Serve) -> None:
    server = serve()
    client = Raw(server)
    client.connection.sendall(FRAME.pack((4 << 20) + 65537, NAMES.index("cuMemcpyHtoD_v2"), 1, 0))
    assert client.connection.recv(1) == b""
    assert Raw(server).ask("cuMemcpyDtoH_v2", words((4 << 20) + 1, client.at, (4 << 20) + 1)) == (None, b"")


def test_a_process_has_at_most_256_connections(serve: Serve) -> None:
    client = Raw(serve())
    others = [client.connect() for _ in range(255)]
    with pytest.raises(AssertionError):
        client.connect()
    others.pop().close()
    until(lambda: connects(client))


def connects(client: Raw) -> bool:
    try:
        client.connect().close()
    except AssertionError:
        return False
    return True


def test_copies_with_host_memory_in_a_capture_are_refused(serve: Serve) -> None:
    """A graph that keeps such a copy would read and write a buffer of the server when it runs."""
    client = Raw(serve())
    (stream,) = client.values("cuStreamCreate", words(1, 1))
    assert client.ask("cuStreamBeginCapture_v2", words(stream, 1))[0] == 0
    assert client.ask("cuMemcpyDtoHAsync_v2", words(8, client.at, 8, stream)) == (CAPTURE_UNSUPPORTED, b"")
    client.send("cuMemcpyHtoDAsync_v2", words(client.at, 8, 5, 8, stream))
    assert client.ask("cuCtxSynchronize", b"") == (CAPTURE_UNSUPPORTED, b"")
    assert client.values("cuStreamEndCapture", words(stream, 1))


def test_a_gpu_whose_kernels_reach_the_nodes_memory_is_not_served(node: Node, serve: Serve) -> None:
    node.environment["KERF_FAKE_CUDA_PAGEABLE"] = "1"
    program = serve().client("info")
    _, err = program.communicate(timeout=30)
    assert program.returncode != 0
    assert "could read the memory of its node" in err
