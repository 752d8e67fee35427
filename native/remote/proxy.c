/* Carries calls from the node of a container to the node of its GPU, by TLS with certificates of both nodes.
 *
 *   proxy serve HOST:PORT FOLDER CERTIFICATE KEY AUTHORITY
 *       one for each node that serves. FOLDER/SLICE has `peer`, the node that may come; `secret`, what it has to know;
 *       and `socket`, the server of that slice. A slice is there as long as its folder is. After SIGTERM it takes no more
 *       connections, says `leaving`, and ends with the last one that it has
 *   proxy connect SOCKET HOST:PORT PEER SLICE SECRET-FILE CERTIFICATE KEY AUTHORITY
 *       one for each container with a remote GPU: what connects to SOCKET gets to SLICE of the node PEER. It ends when
 *       SOCKET is removed
 *   proxy probe HOST:PORT PEER ROUNDS MIB CERTIFICATE KEY AUTHORITY
 *       measures the network to the node PEER: {"rtt_us": the median, "rtt_us_min": …, "mib_s": …}
 *
 * A node's certificate names it as DNS name, and both sides compare. Files are read at each connection, so certificates
 * can be replaced while it runs. The first line of a connection is `kerf/1 slice SLICE SECRET` or `kerf/1 probe MIB`, and
 * its answer `ok` or `no REASON`. */
#define _GNU_SOURCE
#include "log.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 128 << 10, LINE = 512, HANDSHAKE_S = 10, MOST_MIB = 64, MOST_OF_CONTAINER = 4096,
    STACK = 512 << 10, MOST_ROUNDS = 1000, PROBE_S = 30, MOST_STRANGERS = 256, FULL_MS = 100 };
#ifndef OF_SLICE /* tests reach less */
/* Each slice has OF_SLICE connections, whatever the others have, and may have up to MOST_OF_SLICE as long as all slices
 * together have at most MOST_SHARED beyond their own. */
enum { OF_SLICE = 256, MOST_OF_SLICE = 1024, MOST_SHARED = 3072 };
#endif
#ifndef LOOK_MS /* tests wait for less */
#define LOOK_MS 5000
#define GONE_MS 30000 /* without an answer to what was sent */
#define MUTE_MS 300000 /* without an answer to whether there is room again, which is asked every two minutes at least */
#endif
typedef struct { const char *certificate, *key, *authority; } files_t;
typedef struct { const char *address, *folder, *peer, *slice, *secret_file, *socket; files_t files; } settings_t;
typedef struct { const settings_t *settings; int socket; } connection_t;
static atomic_int connections, probing;
static atomic_int strangers; /* of the connections: those that have not shown who they are */

static void say(const char *what, const char *why) { log_line("kerf-remote-proxy: %s: %s", what, why); }
static const char *tls_error(void) {
    static _Thread_local char text[256];
    unsigned long error = ERR_get_error();
    if (!error) return errno ? strerror(errno) : "the other side closed the connection";
    ERR_error_string_n(error, text, sizeof text);
    ERR_clear_error();
    return text;
}

static SSL_CTX *context_of(const files_t *files, int serves) {
    SSL_CTX *made = SSL_CTX_new(serves ? TLS_server_method() : TLS_client_method());
    if (!made) return NULL;
    SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION);
    SSL_CTX_set_verify(made, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_num_tickets(made, 0);
    if (SSL_CTX_use_certificate_chain_file(made, files->certificate) == 1
        && SSL_CTX_use_PrivateKey_file(made, files->key, SSL_FILETYPE_PEM) == 1
        && SSL_CTX_load_verify_locations(made, files->authority, NULL) == 1) return made;
    say("the certificates cannot be used", tls_error());
    return SSL_CTX_free(made), NULL;
}

static void set_times(int socket) {
    const struct timeval limit = {HANDSHAKE_S, 0};
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const int idle_s = 10, interval_s = 5, most = 4;
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &most, sizeof most);
}
/* Returns whether the other node is cut off; then the connection ends, and the client gets an error. A node answers also
 * while its server reads nothing for minutes, as when a kernel runs: it is not cut off, and TCP_USER_TIMEOUT would end its
 * connection too. Idle connections are ended by keepalive. */
static int is_cut_off(int socket) {
    struct tcp_info now;
    socklen_t size = sizeof now;
    if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &now, &size)) return 0;
    return (now.tcpi_unacked && now.tcpi_last_ack_recv > GONE_MS) || (now.tcpi_probes && now.tcpi_last_ack_recv > MUTE_MS);
}

/* --- deadlines ----------------------------------------------------------------------------------------------------- */

/* A time limit of each read would let a stranger stay for ever, a byte at a time: a thread ends what is too late. */
typedef struct deadline { struct deadline *next; int socket; int64_t until_ms; } deadline_t;
static deadline_t *deadlines;
static pthread_mutex_t of_deadlines = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_deadlines = PTHREAD_COND_INITIALIZER;

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}
static void *keep_deadlines(void *nothing) {
    for (;;) {
        pthread_mutex_lock(&of_deadlines);
        while (!deadlines) pthread_cond_wait(&has_deadlines, &of_deadlines);
        const int64_t now = now_ms();
        for (deadline_t *one = deadlines; one; one = one->next)
            if (now >= one->until_ms) shutdown(one->socket, SHUT_RDWR);
        pthread_mutex_unlock(&of_deadlines);
        usleep(200000);
    }
    return nothing;
}
static void begin_deadline(deadline_t *one, int socket, int within_s) {
    pthread_mutex_lock(&of_deadlines);
    *one = (deadline_t){deadlines, socket, now_ms() + within_s * INT64_C(1000)};
    deadlines = one;
    pthread_cond_signal(&has_deadlines);
    pthread_mutex_unlock(&of_deadlines);
}
static void end_deadline(deadline_t *one) {
    pthread_mutex_lock(&of_deadlines);
    for (deadline_t **at = &deadlines; *at; at = &(*at)->next)
        if (*at == one) {
            *at = one->next;
            break;
        }
    pthread_mutex_unlock(&of_deadlines);
}

/* Connections of each slice. 0, or -1 where it has as many as it may. */
typedef struct use { struct use *next; int count; char slice[]; } use_t;
static use_t *uses;
static int shared; /* connections beyond OF_SLICE, of all slices */
static pthread_mutex_t of_uses = PTHREAD_MUTEX_INITIALIZER;
static int use_slice(const char *slice) {
    int failed = -1;
    pthread_mutex_lock(&of_uses);
    use_t *one = uses;
    while (one && strcmp(one->slice, slice)) one = one->next;
    if (!one && (one = calloc(1, sizeof *one + strlen(slice) + 1))) strcpy(one->slice, slice), one->next = uses, uses = one;
    if (one && (one->count < OF_SLICE || (one->count < MOST_OF_SLICE && shared < MOST_SHARED)))
        shared += one->count++ >= OF_SLICE, failed = 0;
    pthread_mutex_unlock(&of_uses);
    return failed;
}
static void leave_slice(const char *slice) {
    pthread_mutex_lock(&of_uses);
    for (use_t **at = &uses; *at; at = &(*at)->next) {
        use_t *one = *at;
        if (strcmp(one->slice, slice)) continue;
        shared -= --one->count >= OF_SLICE;
        if (one->count == 0) *at = one->next, free(one);
        break;
    }
    pthread_mutex_unlock(&of_uses);
}

/* The TLS connection on a TCP one, both sides of which have shown who they are. Frees neither on failure. */
static SSL *shake_hands(SSL_CTX *context, int socket, const char *peer) {
    SSL *made = SSL_new(context);
    if (!made || SSL_set_fd(made, socket) != 1) return SSL_free(made), NULL;
    if (peer) {
        SSL_set_hostflags(made, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
        if (SSL_set1_host(made, peer) != 1) return SSL_free(made), NULL;
    }
    errno = 0;
    const int done = peer ? SSL_connect(made) : SSL_accept(made);
    if (done == 1) return made;
    const long wrong = SSL_get_verify_result(made);
    say("no TLS with the other node", wrong != X509_V_OK ? X509_verify_cert_error_string(wrong) : tls_error());
    return SSL_free(made), NULL;
}

static int read_line(SSL *from, char line[LINE]) {
    for (int i = 0; i < LINE - 1; i++) {
        if (SSL_read(from, line + i, 1) != 1) return -1;
        if (line[i] == '\n') return line[i] = 0, 0;
    }
    return -1;
}
static int write_line(SSL *to, const char *line) {
    const int count = (int)strlen(line);
    return SSL_write(to, line, count) == count ? 0 : -1;
}

/* The first line of a file; "" where there is none. */
static void read_file(const char *folder, const char *name, char to[LINE]) {
    char path[4096];
    if (name) snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(name ? path : folder, "re");
    if (!file || !fgets(to, LINE, file)) to[0] = 0;
    if (file) fclose(file);
    to[strcspn(to, "\r\n")] = 0;
}

/* --- carrying ------------------------------------------------------------------------------------------------------ */

typedef struct { char bytes[BUFFER]; size_t from, to; } buffer_t;
static int has(const buffer_t *buffer) { return buffer->from < buffer->to; }

/* What is there of the TLS side: 1 something, 0 nothing now, -1 it has ended. */
static int take_tls(SSL *tls, buffer_t *to, short *want) {
    const int got = SSL_read(tls, to->bytes, BUFFER);
    if (got > 0) return to->from = 0, to->to = (size_t)got, 1;
    switch (SSL_get_error(tls, got)) {
    case SSL_ERROR_WANT_READ: *want |= POLLIN; return 0;
    case SSL_ERROR_WANT_WRITE: *want |= POLLOUT; return 0;
    default: return ERR_clear_error(), -1;
    }
}
static int give_tls(SSL *tls, buffer_t *from, short *want) {
    const int gave = SSL_write(tls, from->bytes + from->from, (int)(from->to - from->from));
    if (gave > 0) return from->from += (size_t)gave, 1;
    switch (SSL_get_error(tls, gave)) {
    case SSL_ERROR_WANT_READ: *want |= POLLIN; return 0;
    case SSL_ERROR_WANT_WRITE: *want |= POLLOUT; return 0;
    default: return ERR_clear_error(), -1;
    }
}
static int take_plain(int socket, buffer_t *to, short *want) {
    const ssize_t got = recv(socket, to->bytes, BUFFER, 0);
    if (got > 0) return to->from = 0, to->to = (size_t)got, 1;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return *want |= POLLIN, 0;
    return -1;
}
static int give_plain(int socket, buffer_t *from, short *want) {
    const ssize_t gave = send(socket, from->bytes + from->from, from->to - from->from, MSG_NOSIGNAL);
    if (gave > 0) return from->from += (size_t)gave, 1;
    if (gave < 0 && (errno == EAGAIN || errno == EINTR)) return *want |= POLLOUT, 0;
    return -1;
}

/* Until one side ends; what it had sent before still arrives. */
static void carry(SSL *tls, int tcp, int plain) {
    buffer_t *in = calloc(1, sizeof *in), *out = calloc(1, sizeof *out);
    int ended = 0;
    fcntl(tcp, F_SETFL, O_NONBLOCK), fcntl(plain, F_SETFL, O_NONBLOCK);
    while (in && out) {
        short of_tcp = 0, of_plain = 0;
        int moved = 0, failed = 0, done;
        if (has(in)) done = give_plain(plain, in, &of_plain), failed |= done < 0, moved |= done > 0;
        else if (!ended) done = take_tls(tls, in, &of_tcp), ended |= done < 0, moved |= done > 0;
        if (has(out)) done = give_tls(tls, out, &of_tcp), failed |= done < 0, moved |= done > 0;
        else if (!ended) done = take_plain(plain, out, &of_plain), ended |= done < 0, moved |= done > 0;
        if (failed || (ended && !has(in) && !has(out))) break;
        if (moved) continue;
        /* A side of which nothing is wanted now is not asked: it would say again and again that it has ended. */
        struct pollfd polled[] = {{of_tcp ? tcp : -1, of_tcp, 0}, {of_plain ? plain : -1, of_plain, 0}};
        if (poll(polled, 2, ended ? HANDSHAKE_S * 1000 : LOOK_MS) == 0 && (ended || is_cut_off(tcp))) break;
        if ((polled[0].revents | polled[1].revents) & (POLLERR | POLLNVAL)) break;
    }
    free(in), free(out);
    fcntl(tcp, F_SETFL, 0);
    SSL_shutdown(tls);
}

static int dial_unix(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (strlen(path) < sizeof to.sun_path && made >= 0) {
        strcpy(to.sun_path, path);
        if (!connect(made, (struct sockaddr *)&to, sizeof to)) return made;
    }
    if (made >= 0) close(made);
    return -1;
}

/* --- the serving side ---------------------------------------------------------------------------------------------- */

static void answer_probe(SSL *tls, int tcp, const char *line) {
    static const char none[1] = {0};
    long mib = strtol(line, NULL, 10), left = mib << 20;
    char *buffer;
    if (mib < 0 || mib > MOST_MIB) {
        write_line(tls, "no, too much\n");
        return;
    }
    if (atomic_exchange(&probing, 1)) {
        write_line(tls, "no, another probe is under way\n");
        return;
    }
    deadline_t deadline;
    begin_deadline(&deadline, tcp, PROBE_S);
    if ((buffer = malloc(BUFFER)) && !write_line(tls, "ok\n")) {
        char round[1];
        int got, rounds = 0;
        while ((got = SSL_read(tls, round, 1)) == 1 && round[0] == 'r' && rounds++ < MOST_ROUNDS)
            if (SSL_write(tls, round, 1) != 1) break;
        if (got == 1 && round[0] != 'b') got = 0;
        while (got == 1 && left > 0 && (got = SSL_read(tls, buffer, BUFFER)) > 0) left -= got, got = 1;
        if (got == 1 && left <= 0) SSL_write(tls, none, 1);
    }
    free(buffer);
    end_deadline(&deadline);
    atomic_store(&probing, 0);
}

static void answer_slice(SSL *tls, int tcp, const settings_t *settings, char *line) {
    char folder[4096], secret[LINE], peer[LINE], path[4200], *slice = line, *said = strchr(line, ' ');
    if (said) *said++ = 0;
    if (!said || !*slice || strspn(slice, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_") != strlen(slice)) {
        write_line(tls, "no, this is malformed\n");
        return;
    }
    snprintf(folder, sizeof folder, "%s/%s", settings->folder, slice);
    read_file(folder, "secret", secret);
    read_file(folder, "peer", peer);
    X509 *certificate = SSL_get1_peer_certificate(tls);
    const int known = *secret && *peer && strlen(secret) == strlen(said) && !CRYPTO_memcmp(secret, said, strlen(said))
        && certificate && X509_check_host(certificate, peer, 0, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, NULL) == 1;
    X509_free(certificate);
    OPENSSL_cleanse(secret, sizeof secret);
    if (!known) {
        say(slice, "refused: it is not served here, or not to this node");
        write_line(tls, "no, this slice is not served to you\n");
        return;
    }
    if (use_slice(slice)) {
        say(slice, "refused: it has as many connections as it may");
        write_line(tls, "no, this slice has too many connections\n");
        return;
    }
    snprintf(path, sizeof path, "%s/socket", folder);
    const int plain = dial_unix(path);
    if (plain < 0) write_line(tls, "no, its server does not run\n");
    else if (!write_line(tls, "ok\n")) carry(tls, tcp, plain);
    if (plain >= 0) close(plain);
    leave_slice(slice);
}

static void *serve_one(void *argument) {
    connection_t one = *(connection_t *)argument;
    char line[LINE];
    free(argument);
    set_times(one.socket);
    deadline_t deadline;
    begin_deadline(&deadline, one.socket, HANDSHAKE_S);
    SSL_CTX *context = context_of(&one.settings->files, 1);
    SSL *tls = context ? shake_hands(context, one.socket, NULL) : NULL;
    const int spoke = tls && !read_line(tls, line);
    end_deadline(&deadline);
    atomic_fetch_sub(&strangers, 1);
    if (spoke) {
        if (!strncmp(line, "kerf/1 slice ", 13)) answer_slice(tls, one.socket, one.settings, line + 13);
        else if (!strncmp(line, "kerf/1 probe ", 13)) answer_probe(tls, one.socket, line + 13);
        else write_line(tls, "no, this is malformed\n");
    }
    SSL_free(tls);
    SSL_CTX_free(context);
    close(one.socket);
    atomic_fetch_sub(&connections, 1);
    return NULL;
}

/* --- the client's side --------------------------------------------------------------------------------------------- */

static int resolve(const char *address, int passive, struct addrinfo **to) {
    char host[LINE];
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= sizeof host) return say(address, "is not HOST:PORT"), -1;
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    char *name = host;
    if (*name == '[' && name[strlen(name) - 1] == ']') name[strlen(name) - 1] = 0, name++;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0};
    const int wrong = getaddrinfo(*name ? name : NULL, colon + 1, &hints, to);
    if (wrong) return say(address, gai_strerror(wrong)), -1;
    return 0;
}

static int dial(const char *address) {
    struct addrinfo *found;
    int made = -1;
    if (resolve(address, 0, &found)) return -1;
    for (struct addrinfo *one = found; one && made < 0; one = one->ai_next) {
        made = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (made < 0) continue;
        set_times(made);
        if (connect(made, one->ai_addr, one->ai_addrlen)) close(made), made = -1;
    }
    freeaddrinfo(found);
    if (made < 0) say(address, strerror(errno));
    return made;
}

/* A connection to the other node, on which `line` was answered with ok. */
static SSL *request(const settings_t *settings, SSL_CTX *context, const char *line, int *tcp) {
    char answer[LINE] = "";
    if ((*tcp = dial(settings->address)) < 0) return NULL;
    deadline_t deadline;
    begin_deadline(&deadline, *tcp, HANDSHAKE_S);
    SSL *tls = shake_hands(context, *tcp, settings->peer);
    const int answered = tls && !write_line(tls, line) && !read_line(tls, answer);
    end_deadline(&deadline);
    if (answered && !strcmp(answer, "ok")) return tls;
    if (tls) say(settings->address, *answer ? answer : "it broke off");
    SSL_free(tls);
    close(*tcp);
    return NULL;
}

static void *connect_one(void *argument) {
    connection_t one = *(connection_t *)argument;
    char secret[LINE], line[2 * LINE + 32];
    int tcp;
    free(argument);
    read_file(one.settings->secret_file, NULL, secret);
    snprintf(line, sizeof line, "kerf/1 slice %s %s\n", one.settings->slice, secret);
    SSL_CTX *context = context_of(&one.settings->files, 0);
    SSL *tls = context ? request(one.settings, context, line, &tcp) : NULL;
    OPENSSL_cleanse(line, sizeof line), OPENSSL_cleanse(secret, sizeof secret);
    if (tls) {
        carry(tls, tcp, one.socket);
        SSL_free(tls);
        close(tcp);
    }
    SSL_CTX_free(context);
    close(one.socket);
    atomic_fetch_sub(&connections, 1);
    return NULL;
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}
static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int probe(const settings_t *settings, int rounds, int mib) {
    static double took[MOST_ROUNDS];
    static char buffer[BUFFER];
    char line[LINE], byte[1] = {'r'};
    int tcp;
    SSL_CTX *context = context_of(&settings->files, 0);
    if (rounds < 1 || rounds > MOST_ROUNDS || mib < 1 || mib > MOST_MIB) return say("probe", "ROUNDS or MIB is out of range"), 2;
    snprintf(line, sizeof line, "kerf/1 probe %d\n", mib);
    SSL *tls = context ? request(settings, context, line, &tcp) : NULL;
    if (!tls) return 1;
    for (int i = 0; i < rounds; i++) {
        const double begin = now_us();
        if (SSL_write(tls, "r", 1) != 1 || SSL_read(tls, byte, 1) != 1) return say(settings->address, tls_error()), 1;
        took[i] = now_us() - begin;
    }
    const double begin = now_us();
    if (SSL_write(tls, "b", 1) != 1) return say(settings->address, tls_error()), 1;
    for (long left = (long)mib << 20; left > 0;) {
        const int gave = SSL_write(tls, buffer, left < BUFFER ? (int)left : BUFFER);
        if (gave <= 0) return say(settings->address, tls_error()), 1;
        left -= gave;
    }
    if (SSL_read(tls, byte, 1) != 1) return say(settings->address, tls_error()), 1;
    const double seconds = (now_us() - begin) / 1e6;
    qsort(took, (size_t)rounds, sizeof *took, by_value);
    printf("{\"rtt_us\": %.1f, \"rtt_us_min\": %.1f, \"mib_s\": %.1f}\n", took[rounds / 2], took[0], mib / seconds);
    SSL_shutdown(tls);
    return 0;
}

/* --- both ---------------------------------------------------------------------------------------------------------- */

static int listen_tcp(const char *address) {
    struct addrinfo *found;
    const int on = 1;
    int made = -1;
    if (resolve(address, 1, &found)) return -1;
    for (struct addrinfo *one = found; one && made < 0; one = one->ai_next) {
        made = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (made < 0) continue;
        setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(made, one->ai_addr, one->ai_addrlen) || listen(made, 512)) close(made), made = -1;
    }
    freeaddrinfo(found);
    if (made < 0) say(address, strerror(errno));
    return made;
}
static int listen_unix(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (snprintf(at.sun_path, sizeof at.sun_path, "%s.new", path) >= (int)sizeof at.sun_path)
        return say(path, "the path is too long"), -1;
    unlink(at.sun_path);
    /* It gets its name when it can be used. Any user of the container may: no other container has this folder. */
    if (made < 0 || bind(made, (struct sockaddr *)&at, sizeof at) || listen(made, 128) || chmod(at.sun_path, 0666)
        || rename(at.sun_path, path)) return say(path, strerror(errno)), -1;
    return made;
}

static volatile sig_atomic_t leaves;
static void note_leave(int number) { leaves = number; }
static int leave_after_all(int from) {
    close(from);
    printf("leaving\n");
    fflush(stdout);
    while (atomic_load(&connections)) usleep(100000);
    return 0;
}

static int accept_all(int from, const settings_t *settings, void *(*with)(void *)) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    const int serves = settings->folder != NULL;
    const struct timespec look = {LOOK_MS / 1000, LOOK_MS % 1000 * 1000000};
    sigset_t leave, rest;
    sigemptyset(&leave);
    if (serves) sigaddset(&leave, SIGTERM), signal(SIGTERM, note_leave);
    pthread_sigmask(SIG_BLOCK, &leave, &rest); /* it comes while this thread waits, and to no other */
    if (pthread_create(&thread, &small, keep_deadlines, NULL)) return say("a thread", strerror(errno)), 1;
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct pollfd polled = {from, POLLIN, 0};
        const int ready = ppoll(&polled, 1, &look, &rest);
        if (leaves) return leave_after_all(from);
        if (ready <= 0) {
            if (settings->socket && access(settings->socket, F_OK)) return 0;
            continue;
        }
        const int socket = accept4(from, NULL, NULL, SOCK_CLOEXEC);
        if (socket < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                say("a connection has to wait", strerror(errno));
                usleep(FULL_MS * 1000);
            }
            continue;
        }
        connection_t *one = malloc(sizeof *one);
        if (one) *one = (connection_t){settings, socket};
        const int all = atomic_fetch_add(&connections, 1), new = serves ? atomic_fetch_add(&strangers, 1) : 0;
        const int full = serves ? new >= MOST_STRANGERS : all >= MOST_OF_CONTAINER;
        const int failed = full ? 0 : !one ? ENOMEM : pthread_create(&thread, &small, with, one);
        if (!full && !failed) continue;
        say("a connection is refused", full ? "there are too many" : strerror(failed));
        atomic_fetch_sub(&connections, 1);
        if (serves) atomic_fetch_sub(&strangers, 1);
        free(one), close(socket);
    }
}

int main(int argc, char **argv) {
    settings_t settings = {0};
    int from = -1;
    signal(SIGPIPE, SIG_IGN);
    if (argc == 7 && !strcmp(argv[1], "serve")) {
        settings = (settings_t){.address = argv[2], .folder = argv[3], .files = {argv[4], argv[5], argv[6]}};
        return (from = listen_tcp(argv[2])) < 0 ? 1 : accept_all(from, &settings, serve_one);
    }
    if (argc == 10 && !strcmp(argv[1], "connect")) {
        settings = (settings_t){.socket = argv[2], .address = argv[3], .peer = argv[4], .slice = argv[5],
            .secret_file = argv[6], .files = {argv[7], argv[8], argv[9]}};
        return (from = listen_unix(argv[2])) < 0 ? 1 : accept_all(from, &settings, connect_one);
    }
    if (argc == 9 && !strcmp(argv[1], "probe")) {
        settings = (settings_t){.address = argv[2], .peer = argv[3], .files = {argv[6], argv[7], argv[8]}};
        return probe(&settings, atoi(argv[4]), atoi(argv[5]));
    }
    fprintf(stderr, "proxy serve|connect|probe …: see native/remote/proxy.c\n");
    return 2;
}
