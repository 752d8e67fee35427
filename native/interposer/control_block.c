/* The container's control block: its three files, and the slot that this process takes in them.
 *
 * The state of one process is in memory that the kernel wipes in a child (MADV_WIPEONFORK). So a child is not
 * attached, and takes a slot of its own, however it was cloned and whether the fork handlers ran or not.
 *
 * The mapping of the counters holds the slot's lock, not a descriptor: the lock belongs to the open file
 * (F_OFD_SETLK), the mapping keeps that file open, and no child inherits the mapping (MADV_DONTFORK). So a program
 * may close all its descriptors, as daemons do, and is still counted. */
#define _GNU_SOURCE
#include "kerf.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef KERF_DIRECTORY
#define KERF_DIRECTORY "/run/kerf"
#endif

const struct kerf_orders *orders;
struct kerf_counters *counters;
struct kerf_signal *signals;
int slot = -1;

#ifndef F_OFD_GETLK
enum { F_OFD_GETLK = 36, F_OFD_SETLK = 37 };
#endif

static struct own { int attached, locks; } *mine; /* both are 1 in an attached process; wiped in children */
static struct stat counted;                       /* identity of the counters file */
pthread_mutex_t attach_guard = PTHREAD_MUTEX_INITIALIZER;

const char *kerf_directory(void) {
#ifdef KERF_DIRECTORY_FROM_ENVIRONMENT
    const char *wish = getenv("KERF_DIRECTORY");
    if (wish) return wish;
#endif
    return KERF_DIRECTORY;
}

static void *map(const char *name, size_t size, uint32_t magic, int writable, int *keep) {
    char path[512];
    uint32_t *block = MAP_FAILED;
    int file;
    snprintf(path, sizeof path, "%s/%s", kerf_directory(), name);
    file = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (file < 0) return NULL;
    if (lseek(file, 0, SEEK_END) >= (off_t)size)
        block = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
    if (keep && block != MAP_FAILED) *keep = file;
    else close(file);
    if (block == MAP_FAILED) return NULL;
    if (block[0] == magic && block[1] == KERF_VERSION) return block;
    munmap(block, size);
    if (keep) close(file), *keep = -1;
    return NULL;
}

/* Uses the system call, because the C library exports fstat only since a later version than the oldest supported
 * one. */
static int identify(int file, struct stat *found) { return (int)syscall(SYS_fstat, file, found); }

static int is_still(int file, const struct stat *opened) {
    struct stat now;
    return identify(file, &now) == 0 && now.st_dev == opened->st_dev && now.st_ino == opened->st_ino;
}

static struct flock place(int index) {
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = KERF_LOCK_AT + index, .l_len = 1};
}

/* Returns a descriptor of the counters for lock queries. It is opened again if the program has closed it or reused
 * its number. -1: it cannot be opened, or the root directory has changed. */
static int to_ask(void) {
    static int kept = -1;
    char path[512];
    int file = __atomic_load_n(&kept, __ATOMIC_RELAXED);
    if (file >= 0 && is_still(file, &counted)) return file;
    snprintf(path, sizeof path, "%s/counters", kerf_directory());
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0 && !is_still(file, &counted)) close(file), file = -1;
    __atomic_store_n(&kept, file, __ATOMIC_RELAXED);
    return file;
}

/* If the state of a process is unknown, it counts as alive. */
int process_alive(int index) {
    struct flock asked = place(index);
    int file;
    if (index == slot) return 1;
    file = to_ask();
    return file < 0 || fcntl(file, F_OFD_GETLK, &asked) || asked.l_type != F_UNLCK;
}

struct kerf_process *self(void) { return &counters->process[slot]; }

/* Takes a free slot. Its lock makes it this process's slot. The slot's charges are cleared before it counts as used. */
static int take_slot(int file) {
    for (int i = 0; i < KERF_MAX_PROCESSES; i++) {
        struct kerf_process *p = &counters->process[i];
        struct flock wanted = place(i);
        uint64_t state = __atomic_load_n(&p->state, __ATOMIC_SEQ_CST);
        if (state & 1 || fcntl(file, F_OFD_SETLK, &wanted)) continue;
        if (__atomic_load_n(&p->state, __ATOMIC_SEQ_CST) != state) { /* another process took it meanwhile and died */
            wanted.l_type = F_UNLCK;
            fcntl(file, F_OFD_SETLK, &wanted);
            continue;
        }
        memset((char *)p + sizeof p->state, 0, sizeof *p - sizeof p->state);
        p->pid = (int32_t)getpid();
        p->attached_ns = p->heard_ns = now_ns();
        __atomic_store_n(&p->state, state + 3, __ATOMIC_SEQ_CST); /* the next generation, used */
        return i;
    }
    return -1;
}

int control_block_driver_path(char *to) {
    struct kerf_orders *block = map("orders", sizeof *block, KERF_ORDERS_MAGIC, 0, NULL);
    if (!block) return 0;
    memcpy(to, block->driver_path, KERF_PATH_BYTES);
    to[KERF_PATH_BYTES - 1] = 0;
    munmap(block, sizeof *block);
    return to[0] != 0;
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
    timing_forget();
    if (!orders) orders = map("orders", sizeof *orders, KERF_ORDERS_MAGIC, 0, NULL);
    counters = orders ? map("counters", sizeof *counters, KERF_COUNTERS_MAGIC, 1, &file) : NULL;
    if (!counters) return report("no control block of this container's slice"), 0;
    if (!signals) signals = map("signal", sizeof *signals, KERF_SIGNAL_MAGIC, 1, NULL);
    for (unsigned i = 0; signals && i < orders->gpu_count && i < KERF_MAX_GPUS; i++) {
        memcpy(signals->gpu[i].uuid, orders->gpu[i].uuid, 16);
        signals->gpu_count = i + 1;
    }
    if (!madvise(counters, sizeof *counters, MADV_DONTFORK) && !identify(file, &counted)) {
        reclaim();
        slot = take_slot(file);
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

/* Disables cancellation: a thread that is cancelled while it opens or reads a file would leave the lock held. */
static int attach_now(void) {
    int before, done;
    now_ns(); /* loads the driver, whose initialisation may do anything: not while the lock is held */
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

void control_block_forked(void) {
    if (mine) mine->attached = 0, mine->locks = 1;
}

static int read_signal(int file, struct kerf_signal *into) {
    return pread(file, into, sizeof *into, 0) == (ssize_t)sizeof *into && into->magic == KERF_SIGNAL_MAGIC
        && into->version == KERF_VERSION;
}

/* Returns the current signal of another container on the same GPU. The file is never mapped: its owner can truncate
 * it, and a process that reads a mapping beyond the end of the file is killed. The descriptor stays open. If the
 * program has closed it, or its number belongs to another file now, the header is not that of a signal, and the file
 * is opened again. */
const struct kerf_signal *peer_signal(unsigned peer) {
    static struct {
        char name[KERF_NAME_BYTES]; int file; struct stat opened; struct kerf_signal seen;
    } known[KERF_MAX_PEERS];
    char path[512], name[KERF_NAME_BYTES];
    memcpy(name, orders->peer[peer], sizeof name);
    name[KERF_NAME_BYTES - 1] = 0;
    if (!name[0] || strchr(name, '/')) return NULL;
    if (!strcmp(known[peer].name, name) && read_signal(known[peer].file, &known[peer].seen)) return &known[peer].seen;
    if (known[peer].name[0] && is_still(known[peer].file, &known[peer].opened)) close(known[peer].file);
    known[peer].name[0] = 0;
    snprintf(path, sizeof path, "%s/peers/%s", kerf_directory(), name);
    known[peer].file = open(path, O_RDONLY | O_CLOEXEC);
    if (known[peer].file < 0) return NULL;
    if (identify(known[peer].file, &known[peer].opened) || !read_signal(known[peer].file, &known[peer].seen))
        return close(known[peer].file), NULL;
    memcpy(known[peer].name, name, sizeof name);
    return &known[peer].seen;
}
