/* An nvidia-cuda-mps-control without a driver, for tests; the fake libcuda's processes are its clients.
 *
 *   -d [-multiuser-server]   starts the control daemon in the background, where CUDA_MPS_PIPE_DIRECTORY says
 *   (nothing)                sends the commands of its input to the daemon, and prints the answers
 *
 * It does what NVIDIA's pages say (docs.nvidia.com/deploy/mps: Legacy MPS v2 Interface, Architecture, When to Use MPS):
 * - The daemon starts a server for the first client, as the client's user; with -multiuser-server as its own user, for
 *   the clients of all users. Otherwise a client of another user waits until the server's clients have ended.
 * - A server is ACTIVE, or FAULT after a client's fatal fault. The fault is reported to all its clients, and new ones
 *   are refused until these have ended; then it is ACTIVE again.
 * - The default limits are those of servers that start later. A client's own variables can only lower them.
 * - The pipe directory has the socket `control` and nvidia-cuda-mps-control.pid, the log directory control.log.
 * What NVIDIA's pages leave open: a server ends with its control daemon; `quit` ends the servers at once.
 *
 * The protocol on the socket is the fake's own: a client says CLIENT, a user interface COMMAND and the words. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 60, WAITING = 64, TEXT = 8192 };
enum status { NONE, ACTIVE, FAULT };
typedef struct { int pid, inactive; } client_t;
/* Shared by the daemon and its server. */
typedef struct { int status, pid, uid, count, percentage; char limits[1024]; client_t client[CLIENTS]; } server_t;

static server_t *server;
static int to_server = -1;
static char *name; /* argv[0], which ps shows */
static size_t name_room;
static int multiuser, percentage = 100;
static char limits[1024], pipe_directory[512], log_directory[512];
static int waiting[WAITING], waiting_uid[WAITING], waiting_count; /* clients of other users */

static const char *setting(const char *variable, const char *otherwise) {
    const char *text = getenv(variable);
    return text && *text ? text : otherwise;
}

static void note(const char *format, ...) {
    char path[600];
    va_list words;
    FILE *file;
    snprintf(path, sizeof path, "%s/control.log", log_directory);
    if (!(file = fopen(path, "a"))) return;
    va_start(words, format);
    fprintf(file, "[%ld %d] ", (long)time(NULL), (int)getpid());
    vfprintf(file, format, words);
    fputc('\n', file);
    va_end(words);
    fclose(file);
}

static struct sockaddr_un address(void) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char path[600];
    snprintf(path, sizeof path, "%s/control", pipe_directory);
    if (strlen(path) >= sizeof to.sun_path) fprintf(stderr, "%s is too long for a socket\n", path), exit(1);
    strcpy(to.sun_path, path);
    return to;
}

static int connected(void) {
    struct sockaddr_un to = address();
    int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!connect(made, (struct sockaddr *)&to, sizeof to)) return made;
    close(made);
    return -1;
}

static int said(int to, const char *text) { return send(to, text, strlen(text), MSG_NOSIGNAL) < 0; }

/* --- the server ------------------------------------------------------------------------------------------------- */

static int receive(int from) {
    char byte, space[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *header;
    int got;
    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) <= 0) exit(0); /* the daemon has ended */
    header = CMSG_FIRSTHDR(&message);
    if (!header) return -1;
    memcpy(&got, CMSG_DATA(header), sizeof got);
    return got;
}

static void hand(int to, int what) {
    char byte = 'c', space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &what, sizeof what);
    sendmsg(to, &message, MSG_NOSIGNAL);
}

static int socket_of[CLIENTS];

static void welcome(int client) {
    char text[2048];
    struct ucred who;
    socklen_t size = sizeof who;
    if (server->count == CLIENTS) {
        said(client, "MAX_CLIENTS\n");
        close(client);
        return;
    }
    getsockopt(client, SOL_SOCKET, SO_PEERCRED, &who, &size);
    snprintf(text, sizeof text, "OK %d %s %s\n", server->percentage, setting("CUDA_VISIBLE_DEVICES", "-"),
        *server->limits ? server->limits : "-");
    socket_of[server->count] = client;
    server->client[server->count++] = (client_t){who.pid, 0};
    said(client, text);
}

static void heard(int i) {
    char text[64] = "";
    if (recv(socket_of[i], text, sizeof text - 1, 0) <= 0) {
        close(socket_of[i]);
        server->count--;
        server->client[i] = server->client[server->count];
        socket_of[i] = socket_of[server->count];
        int left = 0;
        for (int c = 0; c < server->count; c++) left += server->client[c].inactive;
        if (server->status == FAULT && !left) server->status = ACTIVE, note("Server is active again");
        return;
    }
    if (strncmp(text, "FAULT", 5)) return;
    note("Client %d has caused a fatal fault", server->client[i].pid);
    server->status = FAULT;
    for (int c = 0; c < server->count; c++) server->client[c].inactive = 1;
    for (int c = 0; c < server->count; c++)
        if (c != i) said(socket_of[c], "FAULT\n");
    said(socket_of[i], "FAULT\n"); /* the last one, which waits for it */
}

static void serve(int control) {
    struct pollfd all[CLIENTS + 1];
    for (int other = 3; other < 1024; other++)
        if (other != control) close(other); /* such as the connection of the user interface that asked for it */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(name, 0, name_room);
    snprintf(name, name_room, "nvidia-cuda-mps-server");
    signal(SIGTERM, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
    if (!multiuser && server->uid && (setgid((gid_t)server->uid) || setuid((uid_t)server->uid))) exit(1);
    server->status = ACTIVE;
    for (;;) {
        const int count = server->count;
        all[count] = (struct pollfd){control, POLLIN, 0};
        for (int i = 0; i < count; i++) all[i] = (struct pollfd){socket_of[i], POLLIN, 0};
        if (poll(all, (nfds_t)count + 1, -1) < 0) continue;
        for (int i = count - 1; i >= 0; i--)
            if (all[i].revents) heard(i);
        if (all[count].revents) {
            int client = receive(control);
            if (client >= 0) welcome(client);
        }
    }
}

static void end_server(void) {
    if (server->pid) kill(server->pid, SIGKILL), waitpid(server->pid, NULL, 0);
    if (to_server >= 0) close(to_server);
    to_server = -1;
    *server = (server_t){0};
}

static void start_server(int uid) {
    int pair[2], pid;
    *server = (server_t){.uid = multiuser ? 0 : uid, .percentage = percentage};
    strcpy(server->limits, limits);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return;
    switch (pid = fork()) {
    case -1: break;
    case 0:
        close(pair[0]);
        serve(pair[1]);
        exit(0);
    default:
        close(pair[1]);
        server->pid = pid;
        to_server = pair[0];
        while (server->status == NONE && !waitpid(server->pid, NULL, WNOHANG)) usleep(1000);
        note("Server %d of user %d has started", server->pid, server->uid);
    }
}

static int server_lives(void) {
    if (server->pid && (kill(server->pid, 0) || waitpid(server->pid, NULL, WNOHANG) == server->pid)) {
        note("Server %d has ended", server->pid);
        server->pid = 0;
        end_server();
    }
    return server->pid != 0;
}

/* --- the control daemon ----------------------------------------------------------------------------------------- */

static void admit(int client, int uid) {
    if (server_lives() && !multiuser && server->uid != uid) {
        if (server->count) {
            waiting[waiting_count] = client;
            waiting_uid[waiting_count++] = uid;
            return;
        }
        end_server();
    }
    if (!server_lives()) start_server(uid);
    if (!server->pid) said(client, "CONNECTION_FAILED\n");
    else if (server->status == FAULT) said(client, "SERVER_NOT_READY\n");
    else hand(to_server, client);
    close(client);
}

static void admit_waiting(void) {
    if (!waiting_count || (server_lives() && server->count)) return;
    int client = waiting[0], uid = waiting_uid[0];
    waiting_count--;
    memmove(waiting, waiting + 1, sizeof(int) * (size_t)waiting_count);
    memmove(waiting_uid, waiting_uid + 1, sizeof(int) * (size_t)waiting_count);
    admit(client, uid);
}

/* Keeps one limit a device: "DEVICE=VALUE" in a list with commas. */
static void set_limit(const char *device, const char *value) {
    char before[1024], *next, *save;
    strcpy(before, limits);
    *limits = 0;
    for (next = strtok_r(before, ",", &save); next; next = strtok_r(NULL, ",", &save))
        if (strncmp(next, device, strlen(device)) || next[strlen(device)] != '=')
            snprintf(limits + strlen(limits), sizeof limits - strlen(limits), "%s%s", *limits ? "," : "", next);
    snprintf(limits + strlen(limits), sizeof limits - strlen(limits), "%s%s=%s", *limits ? "," : "", device, value);
}

static const char *limit_of(const char *device) {
    const char *at = limits;
    static char value[64];
    for (; *at; at += strcspn(at, ","), at += *at == ',')
        if (!strncmp(at, device, strlen(device)) && at[strlen(device)] == '=')
            return snprintf(value, sizeof value, "%.*s", (int)strcspn(at, ",") - (int)strlen(device) - 1,
                at + strlen(device) + 1), value;
    return "0G";
}

static void add(char *to, const char *format, ...) {
    va_list words;
    va_start(words, format);
    vsnprintf(to + strlen(to), TEXT - strlen(to), format, words);
    va_end(words);
}

static int known(const char *pid, char *to) {
    if (server_lives() && pid && atoi(pid) == server->pid) return 1;
    add(to, "Server %s not found\n", pid ? pid : "");
    return 0;
}

static int quits;
static void obey(char *line, char *to) {
    char *save, *word = strtok_r(line, " \n", &save), *one = strtok_r(NULL, " \n", &save),
        *two = strtok_r(NULL, " \n", &save);
    *to = 0;
    if (!word) return;
    note("Cmd:%s %s %s", word, one ? one : "", two ? two : "");
    if (!strcmp(word, "get_server_list")) {
        if (server_lives()) add(to, "%d\n", server->pid);
    } else if (!strcmp(word, "get_server_status")) {
        if (known(one, to)) add(to, "%s\n", server->status == FAULT ? "FAULT" : "ACTIVE");
    } else if (!strcmp(word, "get_client_list")) {
        if (known(one, to))
            for (int i = 0; i < server->count; i++) add(to, "%d\n", server->client[i].pid);
    } else if (!strcmp(word, "start_server") && one && two && !strcmp(one, "-uid")) {
        if (!server_lives()) start_server(atoi(two));
    } else if (!strcmp(word, "shutdown_server")) {
        if (known(one, to) && (!server->count || (two && !strcmp(two, "-f")))) end_server();
    } else if (!strcmp(word, "set_default_active_thread_percentage") && one) {
        percentage = atoi(one);
        add(to, "%d.0\n", percentage);
    } else if (!strcmp(word, "get_default_active_thread_percentage")) add(to, "%d.0\n", percentage);
    else if (!strcmp(word, "set_default_device_pinned_mem_limit") && one && two) set_limit(one, two);
    else if (!strcmp(word, "get_default_device_pinned_mem_limit") && one) add(to, "%s\n", limit_of(one));
    else if (!strcmp(word, "quit")) quits = 1;
    else add(to, "Unrecognized command: %s\n", word);
}

static void listen_to(int made) {
    char line[1024] = "", answer[TEXT];
    struct ucred who;
    socklen_t size = sizeof who;
    ssize_t got = recv(made, line, sizeof line - 1, 0);
    if (got > 0 && !strncmp(line, "CLIENT", 6)) {
        getsockopt(made, SOL_SOCKET, SO_PEERCRED, &who, &size);
        admit(made, (int)who.uid);
        return;
    }
    if (got > 8 && !strncmp(line, "COMMAND ", 8)) {
        obey(line + 8, answer);
        if (quits) end_server();
        said(made, *answer ? answer : "\n");
    }
    close(made);
}

static void stop(int number) {
    (void)number;
    quits = 1;
}

static int daemon_of(int listening) {
    char path[600];
    FILE *file;
    server = mmap(NULL, sizeof *server, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", pipe_directory);
    if ((file = fopen(path, "w"))) fprintf(file, "%d\n", (int)getpid()), fclose(file);
    signal(SIGTERM, stop);
    note("Starting control daemon using socket %s/control", pipe_directory);
    while (!quits) {
        struct pollfd one = {listening, POLLIN, 0};
        if (poll(&one, 1, 50) > 0 && one.revents) {
            int made = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
            if (made >= 0) listen_to(made);
        }
        server_lives();
        admit_waiting();
    }
    end_server();
    unlink(path);
    unlink(address().sun_path);
    note("Exit");
    return 0;
}

static int start_daemon(void) {
    struct sockaddr_un at = address();
    int listening, other = connected(), null;
    if (other >= 0) return fprintf(stderr, "An instance of this daemon is already running\n"), 1;
    mkdir(pipe_directory, 0755);
    mkdir(log_directory, 0755);
    unlink(at.sun_path); /* of a daemon that was killed */
    listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listening, (struct sockaddr *)&at, sizeof at) || chmod(at.sun_path, 0666) || listen(listening, 64))
        return perror(at.sun_path), 1;
    switch (fork()) {
    case -1: return perror("fork"), 1;
    case 0: break;
    default: return 0;
    }
    setsid();
    null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; i++) dup2(null, i);
    exit(daemon_of(listening));
}

static int interface(void) {
    char line[900], words[1000], answer[TEXT];
    while (fgets(line, sizeof line, stdin)) {
        int to = connected();
        size_t had = 0;
        ssize_t got;
        if (to < 0) return fprintf(stderr, "Cannot find MPS control daemon process\n"), 1;
        snprintf(words, sizeof words, "COMMAND %s", line);
        if (said(to, words)) return 1;
        while ((got = recv(to, answer + had, sizeof answer - had - 1, 0)) > 0) had += (size_t)got;
        close(to);
        answer[had] = 0;
        if (had && strcmp(answer, "\n")) fputs(answer, stdout);
    }
    return 0;
}

int main(int count, char **words) {
    int starts = 0;
    name = words[0];
    name_room = strlen(words[count - 1]) + (size_t)(words[count - 1] - words[0]);
    snprintf(pipe_directory, sizeof pipe_directory, "%s", setting("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"));
    snprintf(log_directory, sizeof log_directory, "%s", setting("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"));
    percentage = atoi(setting("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"));
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "-d")) starts = 1;
        else if (!strcmp(words[i], "-multiuser-server")) multiuser = 1;
        else return fprintf(stderr, "nvidia-cuda-mps-control: unknown option %s\n", words[i]), 1;
    }
    return starts ? start_daemon() : interface();
}
