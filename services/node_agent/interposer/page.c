/* The three files of a container, and the slot that this process takes in them.
 *
 * What belongs to one process stands in memory that the kernel wipes in a child (MADV_WIPEONFORK): however it was
 * cloned, with our handlers run or not, a child finds itself unattached and takes a slot of its own. */
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

static int *mine; /* 1: this process is attached; wiped in children */
static int lock_file = -1;
static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;

const char *kerf_directory(void) {
#ifdef KERF_DIRECTORY_FROM_ENVIRONMENT
    const char *wish = getenv("KERF_DIRECTORY");
    if (wish) return wish;
#endif
    return KERF_DIRECTORY;
}

static void *map(const char *name, size_t size, uint32_t magic, int writable, int *keep) {
    char path[512];
    uint32_t *page = MAP_FAILED;
    int file;
    snprintf(path, sizeof path, "%s/%s", kerf_directory(), name);
    file = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (file < 0) return NULL;
    if (lseek(file, 0, SEEK_END) >= (off_t)size)
        page = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
    if (keep && page != MAP_FAILED) *keep = file;
    else close(file);
    if (page == MAP_FAILED) return NULL;
    if (page[0] == magic && page[1] == KERF_VERSION) return page;
    munmap(page, size);
    if (keep) close(file), *keep = -1;
    return NULL;
}

static struct flock place(int index) {
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = KERF_LOCK_AT + index, .l_len = 1};
}

int process_alive(int index) {
    struct flock asked = place(index);
    return index == slot || (fcntl(lock_file, F_GETLK, &asked) == 0 && asked.l_type != F_UNLCK);
}

struct kerf_process *self(void) { return &counters->process[slot]; }

/* The lock is what makes a slot ours; its charges are wiped before it counts as used. */
static int take_slot(void) {
    for (int i = 0; i < KERF_MAX_PROCESSES; i++) {
        struct kerf_process *p = &counters->process[i];
        struct flock wanted = place(i);
        uint64_t state = __atomic_load_n(&p->state, __ATOMIC_SEQ_CST);
        if (state & 1 || fcntl(lock_file, F_SETLK, &wanted)) continue;
        if (__atomic_load_n(&p->state, __ATOMIC_SEQ_CST) != state) { /* taken and left behind by one that has died meanwhile */
            wanted.l_type = F_UNLCK;
            fcntl(lock_file, F_SETLK, &wanted);
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

int page_driver_path(char *to) {
    struct kerf_orders *page = map("orders", sizeof *page, KERF_ORDERS_MAGIC, 0, NULL);
    if (!page) return 0;
    memcpy(to, page->driver_path, KERF_PATH_BYTES);
    to[KERF_PATH_BYTES - 1] = 0;
    munmap(page, sizeof *page);
    return to[0] != 0;
}

static void report(const char *what) {
    fprintf(stderr, "kerf: %s (%s): this process gets no GPU\n", what, kerf_directory());
}

static int attach(void) {
    slot = -1;
    table_clear(); /* in a child, what is known so far is the parent's */
    timing_forget(NULL);
    if (!orders) orders = map("orders", sizeof *orders, KERF_ORDERS_MAGIC, 0, NULL);
    if (lock_file >= 0) close(lock_file); /* after a fork: a lock is taken anew anyway, and the parent's is not dropped by this */
    lock_file = -1;
    if (counters) munmap(counters, sizeof *counters);
    counters = orders ? map("counters", sizeof *counters, KERF_COUNTERS_MAGIC, 1, &lock_file) : NULL;
    if (!counters) return report("no page of this container's slice"), 0;
    if (!signals) signals = map("signal", sizeof *signals, KERF_SIGNAL_MAGIC, 1, NULL);
    for (unsigned i = 0; signals && i < orders->gpu_count && i < KERF_MAX_GPUS; i++) {
        memcpy(signals->gpu[i].uuid, orders->gpu[i].uuid, 16);
        signals->gpu_count = i + 1;
    }
    reclaim();
    slot = take_slot();
    if (slot < 0) {
        __atomic_add_fetch(&counters->full, 1, __ATOMIC_RELAXED);
        return report("too many processes in this container"), 0;
    }
    __atomic_add_fetch(&counters->attaches, 1, __ATOMIC_RELAXED);
    return 1;
}

int attached(void) {
    if (LIKELY(mine && *mine)) return 1;
    pthread_mutex_lock(&attaching);
    if (!mine) {
        int *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page != MAP_FAILED) {
            madvise(page, 4096, MADV_WIPEONFORK); /* kernels before 4.14 have the fork handler below */
            mine = page;
        }
    }
    if (mine && !*mine) *mine = attach();
    pthread_mutex_unlock(&attaching);
    return mine && *mine;
}

static int read_signal(int file, struct kerf_signal *into) {
    return pread(file, into, sizeof *into, 0) == (ssize_t)sizeof *into && into->magic == KERF_SIGNAL_MAGIC && into->version == KERF_VERSION;
}

/* By the system call: the C library's own name is younger than the oldest library that must load us. */
static int identify(int file, struct stat *found) { return (int)syscall(SYS_fstat, file, found); }

static int is_still(int file, const struct stat *opened) {
    struct stat now;
    return identify(file, &now) == 0 && now.st_dev == opened->st_dev && now.st_ino == opened->st_ino;
}

/* The signal of another container on the same GPU, as it is now. Never mapped: its owner can cut the file, and whoever reads
 * a mapping beyond its end is killed. The descriptor is kept; where the program closed it, or another file has its number
 * now, the head is not a signal's, and the file is opened anew. */
const struct kerf_signal *peer_signal(unsigned peer) {
    static struct { char name[KERF_NAME_BYTES]; int file; struct stat opened; struct kerf_signal seen; } known[KERF_MAX_PEERS];
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
    if (identify(known[peer].file, &known[peer].opened) || !read_signal(known[peer].file, &known[peer].seen)) return close(known[peer].file), NULL;
    memcpy(known[peer].name, name, sizeof name);
    return &known[peer].seen;
}

static void forked(void) {
    pthread_mutex_init(&attaching, NULL);
    if (mine) *mine = 0;
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, forked); }
