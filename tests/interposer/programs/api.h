/* How programs find the driver. KERF_TEST_WAY selects the way:
 *   runtime   as the CUDA runtime: dlopen, dlsym of cuGetProcAddress_v2 only, everything else from there (default)
 *   threads   the same, compiled for per-thread default streams
 *   old       as runtimes of 11.3 did: cuGetProcAddress of the first form
 *   names     every function by dlsym
 *   path      the same, of the driver opened by its absolute path (KERF_TEST_DRIVER) */
#ifndef API_H
#define API_H
#define _GNU_SOURCE
#include "../../../native/interposer/driver.h"
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef CUresult (*any_t)();
static void *library, *fake;
static any_t get_v2, get_v1;
static const char *way(void) { return getenv("KERF_TEST_WAY") ? getenv("KERF_TEST_WAY") : "runtime"; }

static void open_driver(void) {
    library = dlopen(!strcmp(way(), "path") ? getenv("KERF_TEST_DRIVER") : "libcuda.so.1", RTLD_NOW);
    fake = dlopen(getenv("KERF_TEST_DRIVER"), RTLD_NOW); /* functions that only the fake driver has */
    if (!library || !fake) fprintf(stderr, "%s\n", dlerror()), exit(2);
    get_v2 = (any_t)dlsym(library, "cuGetProcAddress_v2");
    get_v1 = (any_t)dlsym(library, "cuGetProcAddress");
}

/* By plain name, and by the exact name for dlsym. */
static any_t function(const char *plain, const char *exact, int version) {
    void *found = NULL;
    int status = 0, own_streams = !strcmp(way(), "threads");
    if (!library) open_driver();
    if (!strcmp(way(), "names") || !strcmp(way(), "path")) found = dlsym(library, exact);
    else if (!strcmp(way(), "old")) get_v1(plain, &found, version < 12000 ? version : 11080, (uint64_t)0);
    else get_v2(plain, &found, version, (uint64_t)(own_streams ? 2 : 0), &status);
    if (!found) fprintf(stderr, "no %s\n", plain), exit(2);
    return (any_t)found;
}
/* CALL(cuMemAlloc, _v2, 3020)(&pointer, bytes): resolved once for each place. */
#define CALL(plain, suffix, version) \
    ({ static any_t found_; if (!found_) found_ = function(#plain, #plain #suffix, version); found_; })
#define FIGURE(type, name) ((type)dlsym(fake, name))

#define NEED(call)                                                                                   \
    do {                                                                                             \
        CUresult result_ = (call);                                                                   \
        if (result_) fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, result_), exit(3); \
    } while (0)

static CUcontext use_device(int device) {
    CUcontext context;
    NEED(CALL(cuInit, , 2000)(0));
    NEED(CALL(cuDevicePrimaryCtxRetain, , 7000)(&context, device));
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    return context;
}
static uint64_t virtual_now(void) { return FIGURE(uint64_t(*)(void), "kerf_virtual_now")(); }
static void sleep_to(uint64_t ns) { FIGURE(void (*)(uint64_t), "kerf_virtual_sleep_until")(ns); }
static uint64_t device_used(int device) { return FIGURE(uint64_t(*)(int), "kerf_fake_used_bytes")(device); }
static uint64_t gpu_ns(int device) { return FIGURE(uint64_t(*)(int, int), "kerf_fake_gpu_ns")(device, 0); }
static CUfunction kernel(const char *name) {
    CUmodule module;
    CUfunction found;
    NEED(CALL(cuModuleLoadData, , 2000)(&module, ""));
    NEED(CALL(cuModuleGetFunction, , 2000)(&found, module, name));
    return found;
}
static CUresult launch(CUfunction f, CUstream stream) {
    return CALL(cuLaunchKernel, , 7000)(f, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, (void **)NULL, (void **)NULL);
}
/* The same of the function "work", which takes the time in its parameter. */
static CUresult launch_for(CUfunction f, CUstream stream, uint64_t ns) {
    void *parameters[] = {&ns};
    return CALL(cuLaunchKernel, , 7000)(f, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, parameters, (void **)NULL);
}
static CUstream stream_here(void) {
    CUstream made;
    NEED(CALL(cuStreamCreate, , 2000)(&made, 1u));
    return made;
}
static void wait_for_all(void) { NEED(CALL(cuCtxSynchronize, , 2000)()); }
#endif
