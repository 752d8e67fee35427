/* A libcuda.so.1 whose GPU is on another node: each call becomes a message to the server there, in a slice of that GPU.
 *
 *   KERF_REMOTE_SOCKET  where the node's agent has made the connection; /run/kerf/remote/socket
 *
 * The functions take words of 64 bits: on Linux (x86-64, aarch64) an integer or a pointer is passed alike, and what is
 * above a shorter integer is cut off by the list of calls. */
#define _GNU_SOURCE
#include "client.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct { char *bytes; size_t count, room; } buffer_t;
static int put(buffer_t *to, const void *bytes, size_t count) {
    const size_t padded = (count + 7) / 8 * 8;
    if (to->count + padded > to->room) {
        const size_t room = (to->count + padded) * 2;
        char *grown = realloc(to->bytes, room);
        if (!grown) return -1;
        to->bytes = grown, to->room = room;
    }
    if (count) memcpy(to->bytes + to->count, bytes, count);
    memset(to->bytes + to->count + count, 0, padded - count);
    return to->count += padded, 0;
}
static int put_word(buffer_t *to, uint64_t word) { return put(to, &word, sizeof word); }
static int put_bytes(buffer_t *to, const void *bytes, uint64_t count) {
    return put_word(to, bytes ? count : 0) || (bytes && put(to, bytes, count));
}

/* The parameters at the places that the kernel has them, behind their number and places. */
static _Thread_local layout_t layout_of_launch; /* of the call that is being packed */
static CUresult put_parameters(buffer_t *to, void **from) {
    static const char none[8];
    const layout_t *layout = &layout_of_launch;
    if (!from) return put_word(to, 0) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    const size_t head = 4 + 4 * (size_t)layout->count, bytes = (head + 7) / 8 * 8 + layout->bytes;
    if (put_word(to, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t at = to->count;
    for (size_t left = bytes; left; left -= left < sizeof none ? left : sizeof none)
        if (put(to, none, left < sizeof none ? left : sizeof none)) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(to->bytes + at, &layout->count, 4);
    for (int i = 0; i < layout->count; i++) {
        const parameter_t one = layout->parameter[i];
        memcpy(to->bytes + at + 4 + 4 * (size_t)i, &one.offset, 4);
        memcpy(to->bytes + at + (head + 7) / 8 * 8 + one.offset, from[i], one.bytes);
    }
    return CUDA_SUCCESS;
}

/* `extra` of a launch: pairs of a key and a value, ended by 0. 1: the buffer, 2: a pointer to its bytes. */
static CUresult put_packed(buffer_t *to, void **extra) {
    const void *bytes = NULL;
    size_t count = 0;
    for (; extra && *extra; extra += 2) {
        if ((uintptr_t)*extra == 1) bytes = extra[1];
        else if ((uintptr_t)*extra == 2) count = *(const size_t *)extra[1];
        else return CUDA_ERROR_NOT_SUPPORTED;
    }
    return put_bytes(to, bytes, count) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static uint64_t value(uint64_t word, argument_t of) {
    return of.bytes >= 8 ? word : word & ((UINT64_C(1) << 8 * of.bytes) - 1);
}

static CUresult pack(buffer_t *to, int count, const argument_t *arguments, const uint64_t *words) {
    for (int i = 0; i < count; i++) {
        const argument_t one = arguments[i];
        const void *pointer = (const void *)(uintptr_t)words[i]; /* NOLINT: words are pointers here */
        CUresult result = CUDA_SUCCESS;
        int failed = 0;
        switch (one.kind) {
        case 'u': failed = put_word(to, value(words[i], one)); break;
        case 'h': case 'd': failed = put_word(to, words[i]); break;
        case 'o': case 'H': failed = put_word(to, pointer != NULL); break;
        case 'i': failed = put_bytes(to, pointer, one.bytes); break;
        case 'a': failed = put_bytes(to, pointer, one.bytes * value(words[i + 1], arguments[i + 1])); break;
        case 's': failed = put_bytes(to, pointer, pointer ? strlen(pointer) + 1 : 0); break;
        case 'b': failed = put_bytes(to, pointer, value(words[one.bytes], arguments[one.bytes])); break;
        case 'B': failed = put_word(to, pointer ? value(words[one.bytes], arguments[one.bytes]) : 0); break;
        case 'm': {
            size_t bytes = 0;
            const void *image = pointer ? image_of(pointer, &bytes) : NULL;
            failed = put_bytes(to, image, bytes);
            break;
        }
        case 'k': result = put_parameters(to, (void **)(uintptr_t)words[i]); break;
        case 'x': result = put_packed(to, (void **)(uintptr_t)words[i]); break;
        default: break; /* z: left out */
        }
        if (failed) return CUDA_ERROR_OUT_OF_MEMORY;
        if (result) return result;
    }
    return CUDA_SUCCESS;
}

static CUresult unpack(int socket, size_t bytes, int count, const argument_t *arguments, const uint64_t *words) {
    for (int i = 0; i < count; i++) {
        const argument_t one = arguments[i];
        void *to = (void *)(uintptr_t)words[i];
        size_t due = 0;
        if (!to) continue;
        if (one.kind == 'o') due = one.bytes;
        else if (one.kind == 'H') due = 8;
        else if (one.kind == 'B') due = value(words[one.bytes], arguments[one.bytes]);
        if (due > bytes || receive_all(socket, to, due)) return lost();
        bytes -= due;
    }
    return bytes ? lost() : CUDA_SUCCESS;
}

static CUresult exchange(int call, int count, const argument_t *arguments, const uint64_t *words) {
    static _Thread_local buffer_t buffer;
    const int sent = calls[call].how == SENT, socket = connection();
    frame_t frame = {.call = (uint16_t)call, .asked = !sent};
    answer_t answer;
    if (socket < 0) return ERROR_DEVICE_UNAVAILABLE;
    buffer.count = 0;
    if (put(&buffer, &frame, sizeof frame)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = pack(&buffer, count, arguments, words);
    if (result) return result;
    if (buffer.count - sizeof frame > most_bytes(call)) return CUDA_ERROR_INVALID_VALUE;
    frame.bytes = (uint32_t)(buffer.count - sizeof frame);
    frame.ticket = next_ticket(sent);
    memcpy(buffer.bytes, &frame, sizeof frame);
    if (send_all(socket, buffer.bytes, buffer.count)) return lost();
    if (buffer.room > KEPT_BYTES) free(buffer.bytes), buffer = (buffer_t){0};
    if (sent) return CUDA_SUCCESS;
    if (receive_all(socket, &answer, sizeof answer)) return lost();
    if (answer.bytes) result = unpack(socket, answer.bytes, count, arguments, words);
    return result ? result : answer.result;
}

#define ARGS0
#define ARGS1 uint64_t a
#define ARGS2 ARGS1, uint64_t b
#define ARGS3 ARGS2, uint64_t c
#define ARGS4 ARGS3, uint64_t d
#define ARGS5 ARGS4, uint64_t e
#define ARGS8 ARGS5, uint64_t f, uint64_t g, uint64_t h
#define ARGS10 ARGS8, uint64_t i, uint64_t j
#define ARGS11 ARGS10, uint64_t k
#define LIST0 0
#define LIST1 a
#define LIST2 LIST1, b
#define LIST3 LIST2, c
#define LIST4 LIST3, d
#define LIST5 LIST4, e
#define LIST8 LIST5, f, g, h
#define LIST10 LIST8, i, j
#define LIST11 LIST10, k
#define CALL(name, suffix, since, variants, how, count, arguments) \
    FORMS_##variants(name, suffix, since, how, count, arguments)
#define FORM(name, exact, own, since, how, count, arguments) number_##exact,
enum {
#include "calls.h"
};
#undef FORM

static CUresult forward_whole(int call, uint64_t *words) {
    argument_t arguments[MAX_ARGUMENTS];
    const int count = arguments_of(call, arguments);
    CUresult result = ready();
    if (result) return result;
    int data = -1;
    for (int i = 0; i < count; i++) {
        if (arguments[i].kind == 'b' || arguments[i].kind == 'B') data = i;
        if (arguments[i].kind == 'k' && words[i] && layout_of(words[0], &layout_of_launch)) return CUDA_ERROR_NOT_SUPPORTED;
    }
    switch (call) {
    case number_cuModuleUnload: case number_cuLibraryUnload: case number_cuCtxDestroy_v2:
    case number_cuDevicePrimaryCtxRelease_v2: case number_cuDevicePrimaryCtxReset_v2: forget_layouts();
    }
    if (data < 0 || arguments[data].bytes != 2) return exchange(call, count, arguments, words);
    /* A copy: its first two arguments are addresses, its third their bytes. Long ones go in parts, so that neither side
     * keeps all of one. */
    do {
        uint64_t part[MAX_ARGUMENTS];
        memcpy(part, words, sizeof *part * (size_t)count);
        if (words[2] > CHUNK) part[2] = CHUNK;
        result = exchange(call, count, arguments, part);
        words[0] += part[2], words[1] += part[2], words[2] -= part[2];
    } while (!result && words[2]);
    return result;
}

/* A thread is cancelled before a call or after it, as with the driver, of which no call is a cancellation point: here
 * it would leave a ticket for a call that is never sent. */
CUresult forward(int call, uint64_t *words) {
    int before;
    if (call == number_cuGetErrorName) return describe((int)words[0], NAME, (const char **)(uintptr_t)words[1]);
    if (call == number_cuGetErrorString) return describe((int)words[0], TEXT, (const char **)(uintptr_t)words[1]);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    const CUresult result = forward_whole(call, words);
    pthread_setcancelstate(before, NULL);
    return result;
}

#define FORM(name, exact, own, since, how, count, arguments)        \
    EXPORT CUresult exact(ARGS##count);                             \
    EXPORT CUresult exact(ARGS##count) {                            \
        uint64_t words[MAX_ARGUMENTS] = {LIST##count};              \
        return forward(number_##exact, words);                      \
    }
#include "calls.h"
#undef FORM
#undef CALL
