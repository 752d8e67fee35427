/* lookup: asks whether the program has a driver, as libraries do that can go without one, and uses it if so. Prints 1 if it has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(RTLD_DEFAULT, "cuInit");
    printf("%d\n", init != NULL);
    return init ? init(0u) : 0;
}
