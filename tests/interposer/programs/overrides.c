/* overrides: defines functions of the C library, and looks up the original when its own is first called, as servers do
 * that cache dl_iterate_phdr, and sanitizers with every function that they check. Prints 1 if its functions are called
 * instead of the originals, and a kernel runs. */
#include "api.h"
#include <link.h>

/* Ends the program where a lookup calls the function that is being looked up: it has no original yet. */
static void *original(const char *name, int *looking) {
    static const char message[] = "entered during its own lookup\n";
    void *found;
    if (*looking) _exit(write(2, message, sizeof message - 1) > 0 ? 4 : 5);
    *looking = 1;
    found = dlsym(RTLD_NEXT, name);
    *looking = 0;
    return found;
}
#define OVERRIDE(returned, name, parameters, ...)                                      \
    static int calls_of_##name;                                                        \
    returned name parameters {                                                         \
        static returned (*real) parameters;                                            \
        static int looking;                                                            \
        calls_of_##name++;                                                             \
        if (!real) *(void **)&real = original(#name, &looking);                        \
        return real(__VA_ARGS__);                                                      \
    }
typedef int (*visit_t)(struct dl_phdr_info *, size_t, void *);
OVERRIDE(int, dl_iterate_phdr, (visit_t visit, void *data), visit, data)
OVERRIDE(int, strcmp, (const char *a, const char *b), a, b)
OVERRIDE(int, strncmp, (const char *a, const char *b, size_t count), a, b, count)
OVERRIDE(char *, strrchr, (const char *text, int wanted), text, wanted)
OVERRIDE(char *, strchr, (const char *text, int wanted), text, wanted)
OVERRIDE(char *, strstr, (const char *text, const char *wanted), text, wanted)
OVERRIDE(size_t, strlen, (const char *text), text)
OVERRIDE(int, memcmp, (const void *a, const void *b, size_t count), a, b, count)
OVERRIDE(void *, memcpy, (void *to, const void *from, size_t count), to, from, count)
OVERRIDE(void *, memset, (void *to, int value, size_t count), to, value, count)

static int count(struct dl_phdr_info *object, size_t bytes, void *objects) {
    (void)object, (void)bytes;
    return ++*(int *)objects, 0;
}

int main(void) {
    int objects = 0;
    dl_iterate_phdr(count, &objects);
    use_device(0);
    NEED(launch(kernel("ns_20000"), NULL));
    wait_for_all();
    printf("%d\n", objects > 2 && calls_of_dl_iterate_phdr && calls_of_strcmp);
    return 0;
}
