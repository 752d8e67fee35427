/* A library with a constructor that sets what KERF_TEST_BEGUN points to, waits until the main thread sleeps in its own
 * look-up, and looks the driver up. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *opened_found;

static char state_of_main(void) {
    char path[64], line[512] = "";
    FILE *stat;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    if ((stat = fopen(path, "r"))) {
        if (!fgets(line, sizeof line, stat)) line[0] = 0;
        fclose(stat);
    }
    return strrchr(line, ')') ? strrchr(line, ')')[2] : 0;
}

__attribute__((constructor)) static void begin(void) {
    int *begun;
    if (sscanf(getenv("KERF_TEST_BEGUN"), "%p", (void **)&begun) != 1) return;
    __atomic_store_n(begun, 1, __ATOMIC_RELEASE);
    while (state_of_main() != 'S') sched_yield();
    opened_found = dlsym(RTLD_DEFAULT, "cuInit");
}
