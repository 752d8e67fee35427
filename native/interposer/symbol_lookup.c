/* Redirects calls of the driver to the interposer, however a program looks the driver up:
 *   - a program that is linked with libcuda: the interposer exports the driver's exact names (LD_PRELOAD,
 *     ld.so.preload);
 *   - the CUDA runtime, and programs that load the driver themselves: the interposer overrides dlsym in both versions
 *     of glibc;
 *   - a program that calls cuGetProcAddress: the interposer overrides it, and answers from its own tables;
 *   - a program that opens libcuda.so.1, if the interposer is built under that name (SHADOW): it gets the interposer,
 *     and dlsym on that handle is forwarded to the real driver. */
#define _GNU_SOURCE
#include "kerf.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define H(plain, version, exact) extern char exact[];
#define T H
#define F(name) H(name, 0, name)
#include "hooks.h"
#undef H
#undef T
#undef F
extern char nvmlDeviceGetMemoryInfo[], nvmlDeviceGetMemoryInfo_v2[];
EXPORT CUresult cuGetProcAddress(const char *name, void **to, int version, uint64_t flags);
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **to, int version, uint64_t flags, int *status);
static const struct { const char *plain; int version, per_thread; const char *exact; void *hook; } hooks[] = {
#define H(plain, version, exact) {#plain, version, 0, #exact, exact},
#define T(plain, version, exact) {#plain, version, 1, #exact, exact},
#define F(name) {"", 0, 0, #name, name},
#include "hooks.h"
#undef H
#undef T
#undef F
    {"cuGetProcAddress", 11030, 0, "cuGetProcAddress", (void *)cuGetProcAddress},
    {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2", (void *)cuGetProcAddress_v2},
    {"", 0, 0, "nvmlDeviceGetMemoryInfo", nvmlDeviceGetMemoryInfo},
    {"", 0, 0, "nvmlDeviceGetMemoryInfo_v2", nvmlDeviceGetMemoryInfo_v2},
};
enum { HOOKS = sizeof hooks / sizeof *hooks };

/* Any other name is answered without a call of a function of the C library, as in linker.c. */
static int is_gpu_name(const char *name) {
    return (name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l');
}

static void *ours_of(const char *exact) {
    if (!is_gpu_name(exact)) return NULL;
    for (int i = 0; i < HOOKS; i++)
        if (!strcmp(hooks[i].exact, exact)) return hooks[i].hook;
    return NULL;
}
static void *hook_of(const char *exact) {
    void *hook = ours_of(exact);
    return hook && (exact[0] == 'n' || real_symbol(exact)) ? hook : NULL;
}

/* Whether a name is a form of an overridden function that is newer than this library, so that its effect is unknown.
 * Functions that wait, load code or take memory of the host take none that is counted, and pass. */
static int is_unknown_form(const char *exact) {
    static const char *const waits[] = {"cuStream", "cuEvent", "cuCtxSynchronize", "cuMemcpy", "cuModule", "cuLibrary",
        "cuKernel", "cuFunc", "cuMemHost", "cuMemAllocHost", "cuMemFreeHost", "cuMemSetAccess", "cuGraphUpload"};
    const char *version = strstr(exact, "_v");
    size_t length = version ? (size_t)(version - exact) : 0;
    int ours = 0;
    if (!version || version[2] < '2' || version[2] > '9') return 0;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        if (!strncmp(exact, waits[i], strlen(waits[i]))) return 0;
    for (int i = 0; i < HOOKS; i++) {
        if (!strcmp(hooks[i].exact, exact)) return 0;
        ours |= strlen(hooks[i].plain) == length && !strncmp(hooks[i].plain, exact, length);
    }
    return ours;
}

/* Whether the driver's answer is a newer form than the overridden ones, by its exported name. */
static int is_later(const char *plain, const void *answered, int *unknown) {
    char exact[96];
    for (int v = 9; v > 1; v--) {
        if (snprintf(exact, sizeof exact, "%s_v%d", plain, v) >= (int)sizeof exact || real_symbol(exact) != answered)
            continue;
        *unknown = is_unknown_form(exact);
        return !hook_of(exact);
    }
    return 0;
}

/* Returns the hook of the highest version up to the requested one. `named`: whether the function is overridden at
 * all. */
static void *hook_by_version(const char *plain, int version, int per_thread, int *named) {
    int best = -1, only = -1;
    *named = 0;
    for (int i = 0; i < HOOKS; i++) {
        if (strcmp(hooks[i].plain, plain)) continue;
        *named = 1;
        if (!strcmp(hooks[i].exact, plain)) only = i; /* the driver has had it since an earlier version */
    }
    for (int i = 0; i < HOOKS; i++) {
        if (strcmp(hooks[i].plain, plain) || hooks[i].version > version || (hooks[i].per_thread && !per_thread))
            continue;
        if (best < 0 || hooks[i].per_thread > hooks[best].per_thread ||
            (hooks[i].per_thread == hooks[best].per_thread && hooks[i].version > hooks[best].version))
            best = i;
    }
    if (best < 0) best = only;
    return best < 0 ? (*named ? NULL : hook_of(plain)) : real_symbol(hooks[best].exact) ? hooks[best].hook : NULL;
}

/* The hook of exactly the function that the driver has answered. From 12000 on, for example, the driver may answer
 * cuGraphInstantiate with cuGraphInstantiateWithFlags, which has other arguments than the forms of that name. */
static void *hook_of_answer(const char *plain, const void *answered) {
    for (int i = 0; i < HOOKS; i++)
        if (hooks[i].plain[0] && !strncmp(hooks[i].exact, plain, strlen(plain))
            && real_symbol(hooks[i].exact) == answered)
            return hooks[i].hook;
    return NULL;
}

/* Replaces the driver's answer. If the function is overridden, the driver's own answer is never returned, because a
 * form that is not counted would bypass all limits. */
static CUresult ours(const char *name, void **to, int version, uint64_t flags, int *status) {
    int named, unknown = 0;
    void *hook = hook_by_version(name, version, (flags & PROC_PER_THREAD) != 0, &named);
    void *same;
    if (!hook && !named) return CUDA_SUCCESS;
    if ((same = hook_of_answer(name, *to))) return *to = same, CUDA_SUCCESS;
    if (named && is_later(name, *to, &unknown)) {
        if (!unknown) return CUDA_SUCCESS;
        hook = NULL;
    }
    *to = hook;
    if (hook) return CUDA_SUCCESS;
    if (status) *status = unknown ? PROC_NOT_FOUND : PROC_VERSION_TOO_LOW;
    return CUDA_ERROR_NOT_FOUND;
}

typedef CUresult (*proc_v1_t)(const char *, void **, int, uint64_t);
typedef CUresult (*proc_v2_t)(const char *, void **, int, uint64_t, int *);
EXPORT CUresult cuGetProcAddress(const char *name, void **to, int version, uint64_t flags) {
    proc_v1_t real = REAL(proc_v1_t, "cuGetProcAddress");
    CUresult result = real ? real(name, to, version, flags) : CUDA_ERROR_NOT_FOUND;
    return result || !*to ? result : ours(name, to, version, flags, NULL);
}
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **to, int version, uint64_t flags, int *status) {
    proc_v2_t real = REAL(proc_v2_t, "cuGetProcAddress_v2");
    CUresult result = real ? real(name, to, version, flags, status) : CUDA_ERROR_NOT_FOUND;
    return result || !*to ? result : ours(name, to, version, flags, status);
}

/* Hides the interposer's own symbols: without a driver, a program that checks for one must not find the interposer. */
static void *not_ours(void *found, const char *name) { return found == ours_of(name) ? NULL : found; }

/* The last call must be a jump, not a call, because dlsym uses its caller's address for RTLD_NEXT. */
__attribute__((noinline, optimize("O2"))) static void *answer(void *handle, const char *name) {
    dlsym_t real = real_dlsym();
    void *hook = name ? hook_of(name) : NULL;
    if (hook) return hook;
    if (name && is_gpu_name(name) && is_unknown_form(name)) return NULL;
    handle = real_driver_behind(handle);
    if (name && ours_of(name)) return not_ours(real(handle, name), name);
    return real(handle, name);
}
EXPORT __attribute__((optimize("O2"))) void *kerf_dlsym_new(void *handle, const char *name) {
    return answer(handle, name);
}
EXPORT __attribute__((optimize("O2"))) void *kerf_dlsym_old(void *handle, const char *name) {
    return answer(handle, name);
}

/* The driver's functions have no symbol versions, so any requested version matches. */
__attribute__((noinline, optimize("O2"))) static void *answer_versioned(void *handle, const char *name,
    const char *version) {
    dlvsym_t real = real_dlvsym();
    void *hook = name ? hook_of(name) : NULL;
    if (hook) return hook;
    if (name && is_gpu_name(name) && is_unknown_form(name)) return NULL;
    handle = real_driver_behind(handle);
    return real(handle, name, version);
}
EXPORT __attribute__((optimize("O2"))) void *kerf_dlvsym_new(void *handle, const char *name, const char *version) {
    return answer_versioned(handle, name, version);
}
EXPORT __attribute__((optimize("O2"))) void *kerf_dlvsym_old(void *handle, const char *name, const char *version) {
    return answer_versioned(handle, name, version);
}

#ifdef __aarch64__
#define FIRST "GLIBC_2.17"
#else
#define FIRST "GLIBC_2.2.5"
#endif
__asm__(".symver kerf_dlsym_new,dlsym@@GLIBC_2.34");
__asm__(".symver kerf_dlsym_old,dlsym@" FIRST);
__asm__(".symver kerf_dlvsym_new,dlvsym@@GLIBC_2.34");
__asm__(".symver kerf_dlvsym_old,dlvsym@" FIRST);
