"""The list of the driver's functions, from the texts of its headers."""

from __future__ import annotations

import pytest

from tools.driver_api import Function, functions, merged, parse, render

CUDA = """\
#define cuMemAlloc cuMemAlloc_v2
#define cuStreamQuery __CUDA_API_PTSZ(cuStreamQuery)
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
CUresult CUDAAPI cuStreamQuery(CUstream hStream);
CUresult CUDAAPI cuInit(unsigned int Flags);
#if defined(__CUDA_API_VERSION_INTERNAL)
    #undef cuMemAlloc
    CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize);
    CUresult CUDAAPI cuStreamQuery(CUstream hStream);
#endif
"""
TYPEDEFS = """\
typedef CUresult (CUDAAPI *PFN_cuInit_v2000)(unsigned int Flags);
typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)(CUdeviceptr_v2 *dptr, size_t bytesize);
typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v2000)(CUdeviceptr_v1 *dptr, unsigned int bytesize);
typedef CUresult (CUDAAPI *PFN_cuStreamQuery_v7000_ptsz)(CUstream hStream);
typedef CUresult (CUDAAPI *PFN_cuStreamQuery_v2000)(CUstream hStream);
"""
LISTED = (
    Function(name="cuInit", plain="cuInit", version=2000),
    Function(name="cuMemAlloc", plain="cuMemAlloc", version=2000),
    Function(name="cuMemAlloc_v2", plain="cuMemAlloc", version=3020),
    Function(name="cuStreamQuery", plain="cuStreamQuery", version=2000),
    Function(name="cuStreamQuery_ptsz", plain="cuStreamQuery", version=7000),
)


def test_the_nth_form_of_a_function_has_its_nth_version() -> None:
    assert functions(CUDA, TYPEDEFS) == LISTED


def test_headers_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"in cuda\.h"):
        functions(CUDA, TYPEDEFS.replace("cuInit_v2000", "cuStart_v2000"))


def test_the_list_is_read_as_it_was_written() -> None:
    listed = merged({"12": LISTED[:3], "13": LISTED})
    assert listed[LISTED[0]] == ("12", "13")
    assert listed[LISTED[4]] == ("13",)
    assert parse(render(listed)) == listed


def test_two_headers_that_disagree_about_a_version_are_refused() -> None:
    other = Function(name="cuInit", plain="cuInit", version=3000)
    with pytest.raises(ValueError, match="disagree about cuInit"):
        merged({"12": LISTED, "13": (other,)})
