/* opens LIBRARY: one thread opens a library with a constructor that looks the driver up, while the main thread does. Prints
 * how many of the two found it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static int begun;

static void *open_library(void *path) { return dlopen(path, RTLD_NOW | RTLD_GLOBAL); }

int main(int argc, char **argv) {
    pthread_t thread;
    void *library, **found, *here;
    char pointer[32];
    if (argc < 2) return 2;
    snprintf(pointer, sizeof pointer, "%p", (void *)&begun);
    setenv("KERF_TEST_BEGUN", pointer, 1);
    pthread_create(&thread, NULL, open_library, argv[1]);
    while (!__atomic_load_n(&begun, __ATOMIC_ACQUIRE)) sched_yield(); /* the constructor has the linker's lock then */
    here = dlsym(RTLD_DEFAULT, "cuDeviceGetCount");
    pthread_join(thread, &library);
    found = library ? dlsym(library, "opened_found") : NULL;
    printf("%d\n", !!here + (found && *found));
    return 0;
}
