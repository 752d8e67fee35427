/* kerf-remote-server SOCKET DRIVER: serves one slice of a GPU to the programs of a container on another node.
 *
 * It runs in the slice: under the interposer, whose limits hold for all that is called here. Each process of the client
 * gets a process of the server (worker.c), so that a fault of one ends no other, and so that memory is freed by the
 * driver when a program ends, however it ends. This one never touches the GPU. It ends with its agent's signal, and its
 * workers with it.
 *
 *   KERF_REMOTE_UID   the user as which it and its workers run once the socket is there, if it begins as root: 65534. Its
 *                     programs are another machine's, and nothing of a slice needs root. 0: it stays root
 *
 * What workers write to standard error is passed on in a bounded number of lines; what they write to standard output, as
 * kernels do by printf, is nobody's. */
#define _GNU_SOURCE
#include "log.h"
#include "server.h"
#include "wire.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 64, PENDING = 256, HELLO_MS = 5000 };
typedef struct { uint64_t process[2]; int control; pid_t pid; } worker_t;
typedef struct { int socket; size_t got; int64_t until_ms; hello_t hello; } pending_t;

static worker_t workers[WORKERS];
static pending_t pending[PENDING];
static int worker_count, pending_count;
static char **arguments;
static int errors[2]; /* a pipe, into which all workers write */

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

static int refuse(int socket, enum ok why) {
    const welcome_t no = {.magic = MAGIC, .calls = calls_hash(), .ok = why};
    send_all(socket, &no, sizeof no);
    return close(socket);
}

static int pass(int control, int socket, const hello_t *hello) {
    char room[CMSG_SPACE(sizeof socket)] = {0};
    struct iovec bytes = {(void *)hello, sizeof *hello};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof socket);
    memcpy(CMSG_DATA(head), &socket, sizeof socket);
    return sendmsg(control, &message, MSG_NOSIGNAL) == sizeof *hello ? 0 : -1;
}

/* A worker is this program again: it begins without anything of this process. */
static worker_t *begin_worker(const hello_t *hello) {
    int pair[2];
    if (worker_count == WORKERS || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return NULL;
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        if (dup2(pair[1], WORKER_CONTROL) < 0) _exit(1);
        const int nowhere = open("/dev/null", O_WRONLY);
        if (nowhere < 0 || dup2(nowhere, 1) < 0 || dup2(errors[1], 2) < 0) _exit(1);
        execl("/proc/self/exe", arguments[0], "worker", arguments[2], (char *)NULL);
        _exit(1);
    }
    close(pair[1]);
    if (pid < 0) return close(pair[0]), NULL;
    worker_t *made = &workers[worker_count++];
    *made = (worker_t){.process = {hello->process[0], hello->process[1]}, .control = pair[0], .pid = pid};
    return made;
}

static worker_t *worker_of(const hello_t *hello) {
    for (int i = 0; i < worker_count; i++)
        if (!memcmp(workers[i].process, hello->process, sizeof hello->process)) return &workers[i];
    return hello->life ? begin_worker(hello) : NULL;
}

static void end_worker(int i) {
    close(workers[i].control);
    kill(workers[i].pid, SIGKILL);
    while (waitpid(workers[i].pid, NULL, 0) < 0 && errno == EINTR) {}
    workers[i] = workers[--worker_count];
}

/* 1: it is dealt with, and no longer pending. */
static int listen_to(pending_t *one, int64_t now) {
    ssize_t got = recv(one->socket, (char *)&one->hello + one->got, sizeof one->hello - one->got, MSG_DONTWAIT);
    if (got > 0) one->got += (size_t)got;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return close(one->socket), 1;
    if (one->got < sizeof one->hello) return now >= one->until_ms ? refuse(one->socket, REFUSED), 1 : 0;
    worker_t *to = NULL;
    if (one->hello.magic == MAGIC && one->hello.calls == calls_hash()) to = worker_of(&one->hello);
    if (!to || pass(to->control, one->socket, &one->hello)) return refuse(one->socket, REFUSED), 1;
    close(one->socket);
    return 1;
}

static int listener(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (strlen(path) >= sizeof at.sun_path) return fprintf(stderr, "%s: the path is too long\n", path), -1;
    strcpy(at.sun_path, path);
    unlink(path);
    umask(0177); /* the proxy of the same user connects, nobody else */
    if (made < 0 || bind(made, (struct sockaddr *)&at, sizeof at) || listen(made, 128))
        return fprintf(stderr, "%s: %s\n", path, strerror(errno)), -1;
    return made;
}

static void accept_one(int from) {
    const int made = accept4(from, NULL, NULL, SOCK_CLOEXEC);
    if (made < 0) return;
    if (pending_count == PENDING) refuse(made, TOO_MANY_AT_ONCE);
    else pending[pending_count++] = (pending_t){.socket = made, .until_ms = now_ms() + HELLO_MS};
}

/* Lines of the workers. One that is too long for a pipe's whole writes may be cut by another. */
static void pass_errors_on(void) {
    static char line[512];
    static size_t count;
    char got[4096];
    const ssize_t bytes = read(errors[0], got, sizeof got);
    for (ssize_t i = 0; i < bytes; i++) {
        if (got[i] != '\n') line[count++] = got[i];
        if (got[i] != '\n' && count < sizeof line - 1) continue;
        line[count] = 0, count = 0;
        log_line("%s", line);
    }
}

static int serve(const char *path) {
    const int from = listener(path);
    if (from < 0 || leave_root()) return 1;
    if (pipe2(errors, O_CLOEXEC)) return perror("a pipe"), 1;
    fcntl(errors[0], F_SETFL, O_NONBLOCK);
    printf("serving\n");
    fflush(stdout);
    for (;;) {
        struct pollfd polled[2 + WORKERS + PENDING];
        const int of_workers = worker_count, of_pending = pending_count;
        polled[0] = (struct pollfd){from, POLLIN, 0};
        for (int i = 0; i < of_workers; i++) polled[1 + i] = (struct pollfd){workers[i].control, POLLIN, 0};
        for (int i = 0; i < of_pending; i++)
            polled[1 + of_workers + i] = (struct pollfd){pending[i].socket, POLLIN, 0};
        struct pollfd *of_errors = &polled[1 + of_workers + of_pending];
        *of_errors = (struct pollfd){errors[0], POLLIN, 0};
        if (poll(polled, (nfds_t)(2 + of_workers + of_pending), of_pending ? 1000 : -1) < 0 && errno != EINTR) return 1;
        const int64_t now = now_ms();
        /* From the last to the first: what is removed is replaced by the last. */
        for (int i = of_pending - 1; i >= 0; i--)
            if ((polled[1 + of_workers + i].revents || now >= pending[i].until_ms) && listen_to(&pending[i], now))
                pending[i] = pending[--pending_count];
        for (int i = of_workers - 1; i >= 0; i--)
            if (polled[1 + i].revents) end_worker(i);
        if (of_errors->revents) pass_errors_on();
        if (polled[0].revents) accept_one(from);
    }
}

int main(int argc, char **argv) {
    arguments = argv;
    signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && !strcmp(argv[1], "worker")) return work(argv[2]);
    if (argc == 3) return serve(argv[1]);
    fprintf(stderr, "kerf-remote-server SOCKET DRIVER: serves the GPU of this process to clients\n");
    return 2;
}
