/* lookup: checks whether there is a driver, as libraries do that work without one, and uses it if so. Prints 1 if
 * there is one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(RTLD_DEFAULT, "cuInit");
    printf("%d\n", init != NULL);
    return init ? init(0u) : 0;
}
