/* The connections of this process: one that lasts as long as it, and one of each thread that calls. */
#define _GNU_SOURCE
#include "client.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/kerf/remote/socket"
enum { MOST = 4096 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t of_thread;
static int sockets[MOST], opened; /* so that a forked child can close what is its parent's */
static int life = -1, is_lost;
static uint64_t process[2];
static _Atomic uint64_t tickets;
static unsigned char *available;
static unsigned available_bytes;

static void let_go(int socket) {
    for (int i = 0; i < opened; i++)
        if (sockets[i] == socket) sockets[i] = sockets[--opened];
    close(socket);
}
static void end_thread(void *connection) {
    pthread_mutex_lock(&mutex);
    let_go((int)(intptr_t)connection - 1);
    pthread_mutex_unlock(&mutex);
}
/* A forked child is another process, without any CUDA state, as with the driver itself. */
static void in_child(void) {
    pthread_mutex_init(&mutex, NULL);
    while (opened) close(sockets[--opened]);
    pthread_setspecific(of_thread, NULL);
    life = -1, is_lost = 0, tickets = 0;
}
__attribute__((constructor)) static void begin(void) {
    pthread_key_create(&of_thread, end_thread);
    pthread_atfork(NULL, NULL, in_child);
}

static int say(const char *what) {
    const char *path = getenv("KERF_REMOTE_SOCKET");
    fprintf(stderr, "kerf: the remote GPU at %s %s\n", path ? path : DEFAULT_SOCKET, what);
    return -1;
}

/* The caller holds the mutex. */
static int dial(int for_life) {
    const char *path = getenv("KERF_REMOTE_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    hello_t hello = {.magic = MAGIC, .calls = calls_hash(), .process = {process[0], process[1]},
        .life = (uint32_t)for_life};
    welcome_t welcome;
    if (opened == MOST) return say("has no connection left: the program has too many threads");
    if (!path) path = DEFAULT_SOCKET;
    if (strlen(path) >= sizeof to.sun_path) return say("has too long a path");
    strcpy(to.sun_path, path);
    int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0) return say(strerror(errno));
    if (connect(made, (struct sockaddr *)&to, sizeof to)) return close(made), say(strerror(errno));
    (void)send_all(made, &hello, sizeof hello); /* a server that refuses may have closed already, after it said why */
    if (receive_all(made, &welcome, sizeof welcome))
        return close(made), say("does not answer: its slice has ended, or has not begun");
    if (welcome.magic != MAGIC || welcome.calls != hello.calls) return close(made), say("is of another version");
    switch (welcome.ok) {
    case WELCOME: break;
    case TOO_MANY_AT_ONCE: return close(made), say("has too many connections at once: try again");
    case SHARES_MEMORY: return close(made), say("is not served: its kernels could read the memory of its node");
    default: return close(made), say("takes no more programs, or no more threads of this one");
    }
    unsigned char *list = malloc(welcome.available_bytes ? welcome.available_bytes : 1);
    if (!list || receive_all(made, list, welcome.available_bytes)) return free(list), close(made), say("broke off");
    free(available);
    available = list, available_bytes = welcome.available_bytes;
    return sockets[opened++] = made;
}

CUresult ready(void) {
    CUresult result = CUDA_SUCCESS;
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); /* of one that is cancelled the mutex would stay locked */
    pthread_mutex_lock(&mutex);
    if (is_lost) result = ERROR_DEVICE_UNAVAILABLE;
    else if (life < 0) {
        if (getrandom(process, sizeof process, 0) != sizeof process) result = CUDA_ERROR_SYSTEM_NOT_READY;
        else if ((life = dial(1)) < 0) result = CUDA_ERROR_SYSTEM_NOT_READY;
    }
    pthread_mutex_unlock(&mutex);
    pthread_setcancelstate(before, NULL);
    return result;
}

int connection(void) {
    int found = (int)(intptr_t)pthread_getspecific(of_thread) - 1;
    if (found >= 0) return found;
    pthread_mutex_lock(&mutex);
    if (!is_lost && (found = dial(0)) >= 0) pthread_setspecific(of_thread, (void *)(intptr_t)(found + 1));
    pthread_mutex_unlock(&mutex);
    return found;
}

CUresult lost(void) {
    pthread_mutex_lock(&mutex);
    if (!is_lost) say("is gone");
    is_lost = 1;
    pthread_mutex_unlock(&mutex);
    return ERROR_DEVICE_UNAVAILABLE;
}

uint64_t next_ticket(int takes_it) { return takes_it ? atomic_fetch_add(&tickets, 1) : atomic_load(&tickets); }

int is_available(int call) {
    int known = 1;
    pthread_mutex_lock(&mutex);
    if (life >= 0) known = (unsigned)call / 8 < available_bytes && available[call / 8] >> call % 8 & 1;
    pthread_mutex_unlock(&mutex);
    return known;
}
