/* Attaches this process to the control block of its container: at its first call of the driver, and in each child
 * again.
 *
 * Whether a process is attached is in memory that the kernel wipes in a child (MADV_WIPEONFORK). So a child is not
 * attached, and takes a slot of its own, however it was cloned and whether the fork handlers ran or not.
 *
 * The fork handlers make a fork wait until no thread is in the middle of a change that the child would find half done
 * and locked. */
#define _GNU_SOURCE
#include "kerf.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct own { int attached, locks; } *mine; /* both are 1 in an attached process; wiped in children */
static pthread_mutex_t attach_guard = PTHREAD_MUTEX_INITIALIZER;

/* All locks except timing.c's, in the order in which they may be nested; finding_guard comes after them. */
static pthread_mutex_t *const all[] = {&attach_guard, &contexts_guard, &pools_guard, &graphs_guard, &table_guard,
    &account_guard};
enum { LOCKS = sizeof all / sizeof *all };

static void before_fork(void) {
    for (int i = 0; i < LOCKS; i++) pthread_mutex_lock(all[i]);
}
static void in_parent(void) {
    for (int i = LOCKS; i-- > 0;) pthread_mutex_unlock(all[i]);
}

/* A driver that forks while it is loaded does so in the thread that holds finding_guard. */
static void hold_finding(void) { if (!is_finding()) pthread_mutex_lock(&finding_guard); }
static void drop_finding(void) { if (!is_finding()) pthread_mutex_unlock(&finding_guard); }

/* Called in a child, because the parent's threads may have held some. */
static void locks_reinit(void) {
    for (int i = 0; i < LOCKS; i++) pthread_mutex_init(all[i], NULL);
    if (!is_finding()) pthread_mutex_init(&finding_guard, NULL);
}

static void report(const char *what) {
    fprintf(stderr, "kerf: %s (%s): this process gets no GPU\n", what, kerf_directory());
}

static int attach(void) {
    int file = -1;
    slot = -1;
    table_clear(); /* in a child, the known state is the parent's; the parent's counters are not mapped */
    contexts_forget();
    pools_forget();
    graph_memory_forget();
    timing_forget();
    if (!orders) orders = control_block_map("orders", sizeof *orders, KERF_ORDERS_MAGIC, 0, NULL);
    counters = orders ? control_block_map("counters", sizeof *counters, KERF_COUNTERS_MAGIC, 1, &file) : NULL;
    if (!counters) return report("no control block of this container's slice"), 0;
    if (!signals) signals = control_block_map("signal", sizeof *signals, KERF_SIGNAL_MAGIC, 1, NULL);
    for (unsigned i = 0; signals && i < orders->gpu_count && i < KERF_MAX_GPUS; i++) {
        memcpy(signals->gpu[i].uuid, orders->gpu[i].uuid, 16);
        signals->gpu_count = i + 1;
    }
    if (!madvise(counters, sizeof *counters, MADV_DONTFORK) && control_block_identify(file)) {
        reclaim();
        slot = control_block_take_slot(file);
    }
    close(file);
    if (slot >= 0) {
        __atomic_add_fetch(&counters->attaches, 1, __ATOMIC_RELAXED);
        return 1;
    }
    __atomic_add_fetch(&counters->full, 1, __ATOMIC_RELAXED);
    munmap(counters, sizeof *counters);
    counters = NULL;
    return report("too many processes in this container"), 0;
}

/* A child that was cloned without the fork handlers may find locks that threads of its parent held. */
static void ensure_own_locks(void) {
    int none = 0;
    if (LIKELY(__atomic_load_n(&mine->locks, __ATOMIC_ACQUIRE) == 1)) return;
    if (__atomic_compare_exchange_n(&mine->locks, &none, 2, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        locks_reinit();
        __atomic_store_n(&mine->locks, 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&mine->locks, __ATOMIC_ACQUIRE) != 1) {}
}

static void in_child(void) {
    locks_reinit();
    if (mine) mine->attached = 0, mine->locks = 1;
}

/* The handler that was registered last goes first. A thread that holds one of our locks may wait for the allocator's,
 * so ours must be taken before those: an allocator, and the driver, have registered their handlers by now. Before the
 * driver is loaded, finding_guard alone is used. */
static void register_handlers(void) {
    static int registered;
    if (!__atomic_exchange_n(&registered, 1, __ATOMIC_SEQ_CST)) pthread_atfork(before_fork, in_parent, in_child);
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(hold_finding, drop_finding, in_child); }

/* Disables cancellation: a thread that is cancelled while it opens or reads a file would leave the lock held. */
static int attach_now(void) {
    int before, done;
    now_ns(); /* loads the driver, whose initialisation may do anything: not while the lock is held */
    register_handlers();
    if (mine) ensure_own_locks();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&attach_guard);
    if (!mine) {
        void *own_page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (own_page != MAP_FAILED) {
            madvise(own_page, 4096, MADV_WIPEONFORK); /* on kernels before 4.14 the fork handler below does it */
            ((struct own *)own_page)->locks = 1;
            __atomic_store_n(&mine, own_page, __ATOMIC_RELEASE);
        }
    }
    /* a thread that reads it also sees the mappings */
    if (mine && !mine->attached) __atomic_store_n(&mine->attached, attach(), __ATOMIC_RELEASE);
    done = mine && mine->attached;
    pthread_mutex_unlock(&attach_guard);
    pthread_setcancelstate(before, NULL);
    return done;
}

int attached(void) {
    const struct own *own = __atomic_load_n(&mine, __ATOMIC_ACQUIRE);
    return LIKELY(own && __atomic_load_n(&own->attached, __ATOMIC_ACQUIRE)) || attach_now();
}
