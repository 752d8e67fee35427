/* The functions that read the clock and wait for it. If the driver has a clock of its own (the fake), they use that. */
#include "kerf.h"
#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

typedef uint64_t (*now_t)(void);
typedef void (*sleep_t)(uint64_t);
typedef int (*try_t)(pthread_mutex_t *);
static now_t virtual_now;
static sleep_t virtual_sleep;
static try_t try_lock;
static int looked;
enum { SPINS = 2000, SLEEP_NS = 20000 };

/* Several threads may run this at the same time: all find the same functions. */
static void find(void) {
    if (LIKELY(__atomic_load_n(&looked, __ATOMIC_ACQUIRE))) return;
    virtual_now = (now_t)real_symbol("kerf_virtual_now");
    virtual_sleep = (sleep_t)real_symbol("kerf_virtual_sleep_until");
    if (virtual_sleep) try_lock = (try_t)libc_function("pthread_mutex_trylock");
    __atomic_store_n(&looked, 1, __ATOMIC_RELEASE);
}

uint64_t now_ns(void) {
    struct timespec now;
    find();
    if (virtual_now) return virtual_now();
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sleep_until(uint64_t ns) {
    int slack_ns;
    const struct timespec until = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    find();
    if (virtual_sleep) {
        virtual_sleep(ns);
        return;
    }
    slack_ns = prctl(PR_GET_TIMERSLACK); /* usually 50 us, as long as a short kernel */
    if (slack_ns > 0) prctl(PR_SET_TIMERSLACK, 1000ul);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {}
    if (slack_ns > 0) prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns);
}

/* Takes a lock. A thread that holds it may wait for the virtual clock, which stops while this thread blocks
 * elsewhere. */
void lock_by_clock(pthread_mutex_t *lock) {
    find();
    if (!try_lock) pthread_mutex_lock(lock);
    else
        while (try_lock(lock)) virtual_sleep(virtual_now() + 1000);
}

static int take(int *flag) {
    int free_ = 0;
    return __atomic_compare_exchange_n(flag, &free_, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

int take_within(int *flag, uint64_t ns) {
    uint64_t until;
    if (take(flag)) return 1;
    if (!ns) return 0;
    find();
    until = now_ns() + ns;
    for (int i = 0; !virtual_sleep && i < SPINS; i++) /* most hold it for the microseconds of a launch */
        if (!__atomic_load_n(flag, __ATOMIC_RELAXED) && take(flag)) return 1;
    while (now_ns() < until) {
        sleep_until(now_ns() + (virtual_sleep ? 1000 : SLEEP_NS));
        if (take(flag)) return 1;
    }
    return 0;
}
void give(int *flag) { __atomic_store_n(flag, 0, __ATOMIC_RELEASE); }
