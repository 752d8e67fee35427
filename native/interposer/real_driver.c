/* Finds the real driver, whose functions all other files call. */
#define _GNU_SOURCE
#include "kerf.h"
#include <dlfcn.h>

static void *driver, *ourselves;

/* The linker's symbols of the begin and the end of this library in memory. */
extern const char __ehdr_start[] __attribute__((visibility("hidden"))), _end[] __attribute__((visibility("hidden")));

static int is_ours(void *handle) {
    const char *found = real_dlsym()(handle, "cuInit");
    return found >= __ehdr_start && found < _end;
}

typedef void *(*dlopen_t)(const char *, int);
static void *opened(const char *path) {
    void *handle = path[0] ? ((dlopen_t)libc_function("dlopen"))(path, RTLD_LAZY | RTLD_LOCAL) : NULL;
    if (!handle || !is_ours(handle)) return handle;
    __atomic_store_n(&ourselves, handle, __ATOMIC_RELEASE);
    return NULL;
}

/* Opens the driver: at the path in the orders; otherwise by the linker's search; otherwise where CDI mounts it. */
static void find_driver(void) {
    static const char *const usual[] = {"libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
                                        "/usr/lib64/libcuda.so.1", "/usr/lib/libcuda.so.1"};
    char named[KERF_PATH_BYTES] = "";
    void *found = NULL, *by_name;
    if (control_block_driver_path(named)) found = opened(named);
    by_name = opened(usual[0]); /* if built as libcuda.so.1, this is the interposer itself */
    if (!found) found = by_name;
    for (size_t i = 1; i < sizeof usual / sizeof *usual && !found; i++) found = opened(usual[i]);
    __atomic_store_n(&driver, found, __ATOMIC_RELEASE);
}

pthread_mutex_t finding_guard = PTHREAD_MUTEX_INITIALIZER;
static __thread int finding;
int is_finding(void) { return finding; }

/* A library that is being opened may call this, too. It is answered as if there were no driver yet. Another thread does
 * not wait for the one that looks, which may wait for a lock of the linker that the other one has: it looks as well, and
 * finds the same. */
void *real_symbol(const char *exact) {
    static int looked, looking;
    if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE) && !finding) {
        int before, first;
        finding = 1;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); /* files are opened */
        first = !__atomic_exchange_n(&looking, 1, __ATOMIC_ACQ_REL);
        if (first) pthread_mutex_lock(&finding_guard);
        if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) find_driver();
        __atomic_store_n(&looked, 1, __ATOMIC_RELEASE);
        if (first) pthread_mutex_unlock(&finding_guard);
        pthread_setcancelstate(before, NULL);
        finding = 0;
    }
    return driver ? real_dlsym()(driver, exact) : NULL;
}

void *real_driver_behind(void *handle) { return handle && handle == ourselves && driver ? driver : handle; }
