/* opens LIBRARY: one thread opens a library whose constructor looks the driver up, while another thread does. Prints how
 * many of the two found it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *open_library(void *path) { return dlopen(path, RTLD_NOW | RTLD_GLOBAL); }

int main(int argc, char **argv) {
    pthread_t thread;
    void *library, **found;
    int opening[2];
    char number[16], begun;
    if (argc < 2 || pipe(opening)) return 2;
    snprintf(number, sizeof number, "%d", opening[1]);
    setenv("KERF_TEST_BEGUN", number, 1);
    pthread_create(&thread, NULL, open_library, argv[1]);
    if (read(opening[0], &begun, 1) != 1) return 3; /* the constructor runs, with the linker's lock */
    void *here = dlsym(RTLD_DEFAULT, "cuDeviceGetCount");
    pthread_join(thread, &library);
    found = library ? dlsym(library, "opened_found") : NULL;
    printf("%d\n", !!here + (found && *found));
    return 0;
}
