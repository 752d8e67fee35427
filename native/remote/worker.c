/* Makes the calls of one process of the client: a thread for each of its threads. */
#define _GNU_SOURCE
#include "../interposer/driver.h"
#include "server.h"
#include "wire.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static function_t *functions;
static CUresult (*synchronise[2])(CUstream);
static void (*leave)(void); /* of a fake driver with a clock of its own: this thread waits for something else now */
static CUresult initialised;
static int shares;
static atomic_int connections;
enum { MOST_CONNECTIONS = 256 };
static pthread_mutex_t long_image = PTHREAD_MUTEX_INITIALIZER; /* one at a time has the memory of such a frame */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t advanced = PTHREAD_COND_INITIALIZER;
static uint64_t made;     /* calls without answer that were made */
static CUresult deferred; /* the first error of one, until a call has returned it */

static void await(uint64_t ticket) {
    pthread_mutex_lock(&mutex);
    while (made < ticket) pthread_cond_wait(&advanced, &mutex);
    pthread_mutex_unlock(&mutex);
}
static void advance(CUresult result) {
    pthread_mutex_lock(&mutex);
    made++;
    if (!deferred) deferred = result;
    pthread_cond_broadcast(&advanced);
    pthread_mutex_unlock(&mutex);
}
/* Only what waits for work returns the error of earlier work: the results of other calls would be lost with it. */
static CUresult with_deferred(enum how how, CUresult result) {
    if (how != WAITED && how != FINISHED) return result;
    pthread_mutex_lock(&mutex);
    if (!result && deferred) result = deferred, deferred = CUDA_SUCCESS;
    pthread_mutex_unlock(&mutex);
    return result;
}

/* What a frame says, bounds checked: `at` stays within it. */
typedef struct { char *at, *end; int broken; } reader_t;
static uint64_t word(reader_t *from) {
    uint64_t got = 0;
    if (from->end - from->at < 8) return from->broken = 1, 0;
    memcpy(&got, from->at, 8);
    return from->at += 8, got;
}
static void *bytes(reader_t *from, uint64_t count) {
    const uint64_t padded = count > MAX_IMAGE_FRAME ? count : (count + 7) / 8 * 8;
    if (from->broken || padded > (uint64_t)(from->end - from->at)) return from->broken = 1, NULL;
    void *found = from->at;
    from->at += padded;
    return found;
}

static void read_parameters(made_call_t *call, int i, reader_t *from) {
    const uint64_t count = word(from);
    uint32_t parameters, offset;
    char *all = bytes(from, count);
    if (!count || !all) return;
    if (count < 8) {
        from->broken = 1;
        return;
    }
    memcpy(&parameters, all, 4);
    const size_t head = (4 + 4 * (size_t)parameters + 7) / 8 * 8;
    if (parameters > MAX_PARAMETERS || head > count) {
        from->broken = 1;
        return;
    }
    for (uint32_t p = 0; p < parameters; p++) {
        memcpy(&offset, all + 4 + 4 * p, 4);
        if (offset > count - head) from->broken = 1;
        else call->parameters[p] = all + head + offset, call->offset[p] = offset;
    }
    call->parameter_count = parameters, call->parameter_bytes = count - head;
    call->words[i] = (uintptr_t)call->parameters;
}

static void read_call(made_call_t *call, int count, const argument_t *arguments, reader_t *from) {
    memset(call->words, 0, sizeof call->words), memset(call->output, 0, sizeof call->output);
    call->wrong = CUDA_SUCCESS;
    for (int i = 0; i < count && !from->broken; i++) {
        output_t *out = &call->output[i];
        uint64_t said;
        out->kind = arguments[i].kind;
        switch (arguments[i].kind) {
        case 'u': case 'h': case 'd': call->words[i] = word(from); break;
        case 'o': out->bytes = word(from) ? arguments[i].bytes : 0; break;
        case 'H': out->bytes = word(from) ? 8 : 0; break;
        case 'B': out->bytes = word(from); break;
        case 'S':
            if (word(from)) out->bytes = 256, call->words[i] = (uintptr_t)&out->text;
            break;
        case 'k': read_parameters(call, i, from); break;
        case 'x':
            if (!(said = word(from))) break;
            call->packed = said;
            call->extra[0] = (void *)1, call->extra[1] = bytes(from, said);
            call->extra[2] = (void *)2, call->extra[3] = &call->packed, call->extra[4] = NULL;
            call->words[i] = (uintptr_t)call->extra;
            break;
        case 'z': break;
        default: /* i, a, s, b, m */
            if (!(said = word(from))) break;
            call->words[i] = (uintptr_t)bytes(from, said), call->sent[i] = said;
            if (arguments[i].kind == 's' && !from->broken && ((char *)(uintptr_t)call->words[i])[said - 1])
                from->broken = 1;
            if (arguments[i].kind == 'i' && said != arguments[i].bytes) from->broken = 1;
        }
        if (out->bytes > CHUNK) from->broken = 1;
    }
    /* What the call reads by a count has to be there; what it writes has to have room. */
    for (int i = 0; i < count && !from->broken; i++) {
        output_t *out = &call->output[i];
        if (out->kind == 'o' || out->kind == 'H' || out->kind == 'B') {
            if (out->kind == 'B' && out->bytes && out->bytes != call->words[arguments[i].bytes]) from->broken = 1;
            if (out->bytes && !(out->data = calloc(1, out->bytes + 8))) call->wrong = CUDA_ERROR_OUT_OF_MEMORY;
            call->words[i] = (uintptr_t)out->data;
        }
    }
    if (from->at != from->end) from->broken = 1;
}

/* The counts beside pointers, which the driver trusts: of `b` and `a`, against what was sent. */
static int counts_hold(const made_call_t *call, int count, const argument_t *arguments) {
    for (int i = 0; i < count; i++) {
        const uintptr_t at = (uintptr_t)call->words[i];
        uint64_t said = 0;
        if (!at || (arguments[i].kind != 'b' && arguments[i].kind != 'a')) continue;
        memcpy(&said, (char *)at - 8, 8);
        if (arguments[i].kind == 'b' && said != call->words[arguments[i].bytes]) return 0;
        if (arguments[i].kind == 'a' && (said % arguments[i].bytes || said / arguments[i].bytes != call->words[i + 1]))
            return 0;
    }
    return 1;
}

/* It is no client of ours, or one that is out of order for good. */
__attribute__((noreturn)) static void refuse(int number) {
    fprintf(stderr, "kerf-remote-server: a client sent a malformed call of %s\n", calls[number].exact);
    _exit(1);
}

static CUresult make(int number, made_call_t *call, int count, const argument_t *arguments) {
    const uint64_t *w = call->words;
    function_t f = functions[number];
    if (!f) return CUDA_ERROR_NOT_SUPPORTED;
    if (call->wrong) return call->wrong;
    CUresult result = before_call(number, call, count, arguments);
    if ((int)result == MALFORMED) refuse(number);
    if (result) return result;
    result = f(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10]);
    if (!result && calls[number].how == FINISHED)
        result = synchronise[calls[number].per_thread]((CUstream)(uintptr_t)w[calls[number].count - 1]);
    if (after_call(number, call, count, arguments, result)) refuse(number); /* no memory: its handles would be lost */
    return result;
}

static int answer(int socket, made_call_t *call, int count, CUresult result) {
    char texts[256];
    answer_t head = {.result = result};
    for (int i = 0; !result && i < count; i++) head.bytes += (uint32_t)call->output[i].bytes;
    int failed = send_all(socket, &head, sizeof head);
    for (int i = 0; !failed && !result && i < count; i++) {
        const output_t *out = &call->output[i];
        if (!out->bytes) continue;
        if (out->kind == 'S') {
            memset(texts, 0, sizeof texts);
            if (out->text) strncpy(texts, out->text, sizeof texts - 1);
        }
        failed = send_all(socket, out->kind == 'S' ? texts : out->data, out->bytes);
    }
    return failed;
}

static void *serve(void *of_thread) {
    const int socket = (int)(intptr_t)of_thread;
    static _Thread_local made_call_t call;
    char *body = NULL;
    size_t room = 0;
    frame_t frame;
    for (;;) {
        if (leave) leave();
        if (receive_all(socket, &frame, sizeof frame) || frame.call >= call_count) break;
        if (frame.bytes > most_bytes(frame.call)) break;
        const int is_long = frame.bytes > MAX_FRAME;
        if (is_long) pthread_mutex_lock(&long_image);
        const int sent = calls[frame.call].how == SENT;
        if (frame.bytes > room) {
            free(body);
            if (!(body = malloc((room = frame.bytes) + 1))) _exit(1);
        }
        if (!body && !(body = malloc(1))) _exit(1);
        if (receive_all(socket, body, frame.bytes)) {
            if (is_long) pthread_mutex_unlock(&long_image);
            break;
        }
        body[frame.bytes] = 0; /* behind the text of a module */
        argument_t arguments[MAX_ARGUMENTS];
        const int count = arguments_of(frame.call, arguments);
        reader_t from = {body, body + frame.bytes, 0};
        read_call(&call, count, arguments, &from);
        if (from.broken || !counts_hold(&call, count, arguments) || sent == frame.asked)
            refuse(frame.call);
        await(frame.ticket);
        CUresult result = make(frame.call, &call, count, arguments);
        int failed = 0;
        if (sent) advance(result);
        else failed = answer(socket, &call, count, with_deferred(calls[frame.call].how, result));
        for (int i = 0; i < count; i++) free(call.output[i].data);
        if (room > KEPT_BYTES) free(body), body = NULL, room = 0;
        if (is_long) pthread_mutex_unlock(&long_image);
        if (failed) break;
    }
    free(body);
    close(socket);
    atomic_fetch_sub(&connections, 1);
    return NULL;
}

static int open_driver(const char *path) {
    void *driver = dlopen(path, RTLD_NOW);
    CUresult (*init)(unsigned);
    if (!driver) return fprintf(stderr, "%s\n", dlerror()), -1;
    if (!(functions = calloc((size_t)call_count, sizeof *functions))) return -1;
    for (int i = 0; i < call_count; i++) functions[i] = (function_t)dlsym(driver, calls[i].exact);
    *(void **)&synchronise[0] = dlsym(driver, "cuStreamSynchronize");
    *(void **)&synchronise[1] = dlsym(driver, "cuStreamSynchronize_ptsz");
    *(void **)&leave = dlsym(driver, "kerf_virtual_leave");
    *(void **)&init = dlsym(driver, "cuInit");
    if (!init || !synchronise[0] || find_checks(driver)) return fprintf(stderr, "%s is no driver\n", path), -1;
    initialised = init(0);
    shares = !initialised && shares_memory(driver);
    if (shares)
        fprintf(stderr, "kerf-remote-server: kernels on this GPU can read the memory of this node's processes "
            "(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS): it is not served\n");
    return 0;
}

static int welcome(int socket, enum ok ok) {
    const size_t count = ((size_t)call_count + 7) / 8;
    welcome_t head = {MAGIC, calls_hash(), (uint32_t)ok, (uint32_t)count};
    unsigned char *available = calloc(1, count);
    if (!available) return -1;
    for (int i = 0; i < call_count; i++) available[i / 8] |= (unsigned char)((functions[i] != NULL) << i % 8);
    const int failed = send_all(socket, &head, sizeof head) || send_all(socket, available, count);
    return free(available), failed ? -1 : 0;
}

/* The client's process ends with this connection, and then so does this one: the driver frees what it had. */
static void *live(void *connection) {
    char byte;
    receive_all((int)(intptr_t)connection, &byte, 1);
    _exit(0);
}

int work(const char *driver) {
    if (open_driver(driver)) return 1;
    for (;;) {
        char room[CMSG_SPACE(sizeof(int))];
        hello_t hello;
        struct iovec data = {&hello, sizeof hello};
        struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
        pthread_t thread;
        int socket;
        if (leave) leave();
        if (recvmsg(WORKER_CONTROL, &message, MSG_CMSG_CLOEXEC) != sizeof hello || !CMSG_FIRSTHDR(&message)) return 0;
        memcpy(&socket, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof socket);
        const int full = !hello.life && atomic_fetch_add(&connections, 1) >= MOST_CONNECTIONS;
        const enum ok ok = shares ? SHARES_MEMORY : initialised || full ? REFUSED : WELCOME;
        if (!welcome(socket, ok) && ok == WELCOME
            && !pthread_create(&thread, NULL, hello.life ? live : serve, (void *)(intptr_t)socket)) {
            pthread_detach(thread);
            continue;
        }
        close(socket);
        if (hello.life) return 0; /* nobody would end it */
        atomic_fetch_sub(&connections, 1);
    }
}
