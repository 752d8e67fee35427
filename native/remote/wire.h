/* What client and server send each other over one connection, in the byte order of the machine (both are little endian
 * Linux of the same architecture, which the hello checks).
 *
 * A process of the client is one process of the server; a thread is a connection, and a thread there, so that whatever
 * CUDA keeps by thread (the current context, the default stream) is kept. One more connection, over which nothing is
 * called, lasts as long as the process.
 *
 * Order. The calls that need no answer have tickets, 0, 1, 2, … of the process. The server makes them in this order,
 * whatever connection they come by, and another call when all that were sent before it are made. So work is submitted
 * in the order in which the program's threads submitted it. */
#ifndef WIRE_H
#define WIRE_H
#include <stddef.h>
#include <stdint.h>

#define MAGIC UINT32_C(0x4b524d31) /* "KRM1" */
enum { MAX_ARGUMENTS = 11, MAX_PARAMETERS = 512, CHUNK = 4 << 20, MAX_FRAME = CHUNK + 65536,
    MAX_IMAGE_FRAME = 256 << 20, KEPT_BYTES = 1 << 20 }; /* KEPT_BYTES: of a buffer between calls */
enum { ANSWERED_RESULT = 8 };

typedef struct { uint32_t magic, calls; uint64_t process[2]; uint32_t life, reserved; } hello_t;
enum ok { REFUSED, WELCOME, TOO_MANY_AT_ONCE, SHARES_MEMORY };
typedef struct { uint32_t magic, calls; uint32_t ok, available_bytes; } welcome_t; /* ok: an enum ok */
typedef struct { uint32_t bytes; uint16_t call, asked; uint64_t ticket; } frame_t;
typedef struct { uint32_t bytes; int32_t result; } answer_t;

enum how { ASKED, WAITED, SENT, FINISHED };
enum variants { NONE, STREAMS, COPIES };
/* What a handle is of. The server takes only those that it has returned, because the driver trusts them. */
enum handle_kinds { A_CONTEXT = 1, A_STREAM, AN_EVENT, A_MODULE, A_FUNCTION, A_KERNEL, A_LIBRARY, A_GRAPH, AN_EXEC,
    A_POOL, AN_ALLOCATION };
/* bytes: or the number of the argument that counts, or the kind of a handle */
typedef struct { char kind; uint8_t bytes; } argument_t;
typedef struct {
    const char *plain, *exact, *arguments;
    int since, count;
    enum how how;
    int per_thread; /* the form for per-thread default streams */
} call_t;

/* Each form is a call of its own: its number is its place in the list. */
#define FORMS_NONE(name, suffix, ...) FORM(name, name##suffix, 0, __VA_ARGS__)
#define FORMS_STREAMS(name, suffix, ...) \
    FORM(name, name##suffix, 0, __VA_ARGS__) FORM(name, name##suffix##_ptsz, 1, __VA_ARGS__)
#define FORMS_COPIES(name, suffix, ...) \
    FORM(name, name##suffix, 0, __VA_ARGS__) FORM(name, name##suffix##_ptds, 1, __VA_ARGS__)

extern const call_t calls[];
extern const int call_count;
uint32_t calls_hash(void); /* differs where the lists differ */
int arguments_of(int call, argument_t arguments[MAX_ARGUMENTS]); /* their number */

uint32_t most_bytes(int call); /* of a frame: images of modules are longer than what else is sent */

int send_all(int socket, const void *bytes, size_t count); /* 0, or -1 where the other side is gone */
int receive_all(int socket, void *bytes, size_t count);
#endif
