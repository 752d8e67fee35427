/* The control block of this process's container: the slot that the process takes in it, and the signals of its peers.
 *
 * The mapping of the counters holds the slot's lock, not a descriptor: the lock belongs to the open file
 * (F_OFD_SETLK), the mapping keeps that file open, and no child inherits the mapping (MADV_DONTFORK). So a program
 * may close all its descriptors, as daemons do, and is still counted. */
#define _GNU_SOURCE
#include "kerf.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

const struct kerf_orders *orders;
struct kerf_counters *counters;
struct kerf_signal *signals;
int slot = -1;

#ifndef F_OFD_GETLK
enum { F_OFD_GETLK = 36, F_OFD_SETLK = 37 };
#endif

static struct stat counted; /* identity of the counters file */

/* Uses the system call, because the C library exports fstat only since a later version than the oldest supported
 * one. */
static int identify(int file, struct stat *found) { return (int)syscall(SYS_fstat, file, found); }

int control_block_identify(int file) { return !identify(file, &counted); }

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
int control_block_take_slot(int file) {
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

enum { RETRY_NS = 1000000000 };

static int read_signal(int file, struct kerf_signal *into) {
    return pread(file, into, sizeof *into, 0) == (ssize_t)sizeof *into && into->magic == KERF_SIGNAL_MAGIC
        && into->version == KERF_VERSION;
}

static struct {
    char name[KERF_NAME_BYTES]; int file; struct stat opened; struct kerf_signal seen;
    uint64_t failed_ns; /* when it could not be opened; 0: it could */
} known[KERF_MAX_PEERS];

/* O_NONBLOCK: the owner may hold a lease on the file (fcntl F_SETLEASE), for which open() would wait up to 45 s. */
static int open_signal(unsigned peer, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/peers/%s", kerf_directory(), name);
    known[peer].file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (known[peer].file < 0) return 0;
    if (!identify(known[peer].file, &known[peer].opened) && read_signal(known[peer].file, &known[peer].seen)) return 1;
    close(known[peer].file);
    return 0;
}

/* Returns the current signal of another container on the same GPU. The file is never mapped: its owner can truncate
 * it, and a process that reads a mapping beyond the end of the file is killed. The descriptor stays open. If the
 * program has closed it, or its number belongs to another file now, the header is not that of a signal, and the file
 * is opened again. A file that could not be opened is opened again after a second, not at each launch. */
const struct kerf_signal *peer_signal(unsigned peer) {
    char name[KERF_NAME_BYTES];
    memcpy(name, orders->peer[peer], sizeof name);
    name[KERF_NAME_BYTES - 1] = 0;
    if (!name[0] || strchr(name, '/')) return NULL;
    if (strcmp(known[peer].name, name)) {
        if (known[peer].name[0] && !known[peer].failed_ns && is_still(known[peer].file, &known[peer].opened))
            close(known[peer].file);
        memcpy(known[peer].name, name, sizeof name);
        known[peer].failed_ns = 0;
    } else if (!known[peer].failed_ns) {
        if (read_signal(known[peer].file, &known[peer].seen)) return &known[peer].seen;
        if (is_still(known[peer].file, &known[peer].opened)) close(known[peer].file);
    } else if (now_ns() < known[peer].failed_ns + RETRY_NS) return NULL;
    known[peer].failed_ns = open_signal(peer, name) ? 0 : now_ns() | 1;
    return known[peer].failed_ns ? NULL : &known[peer].seen;
}
