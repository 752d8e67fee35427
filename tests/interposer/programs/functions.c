/* functions: looks functions of the driver up as programs do. For each line "NAME PLAIN VERSION FLAGS" on its input it
 * prints who answers dlsym(NAME), and cuGetProcAddress(PLAIN, VERSION, FLAGS): o the driver's own function, k the
 * interposer, - no one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char who(void *found) {
    Dl_info info;
    if (!found || !dladdr(found, &info)) return '-';
    return strstr(info.dli_fname, "libkerf") ? 'k' : 'o';
}

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*get)(const char *, void **, int, uint64_t, int *);
    char name[96], plain[96];
    int version;
    unsigned flags;
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
    get = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(library, "cuGetProcAddress_v2");
    while (scanf("%95s %95s %d %u", name, plain, &version, &flags) == 4) {
        void *found = NULL;
        int status = 0;
        if (get(plain, &found, version, flags, &status)) found = NULL;
        printf("%c%c\n", who(dlsym(library, name)), who(found));
    }
    return 0;
}
