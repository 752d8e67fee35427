/* The list of calls, and whole messages on a socket. */
#define _GNU_SOURCE
#include "wire.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CALL(name, suffix, since, variants, how, count, arguments) \
    FORMS_##variants(name, suffix, since, how, count, arguments)
#define FORM(name, exact, own, since, how, count, arguments) {#name, #exact, arguments, since, count, how, own},
const call_t calls[] = {
#include "calls.h"
};
#undef FORM
#undef CALL
const int call_count = sizeof calls / sizeof *calls;

uint32_t calls_hash(void) {
    uint32_t hash = UINT32_C(2166136261);
    for (int i = 0; i < call_count; i++) {
        const char *words[] = {calls[i].exact, calls[i].arguments};
        for (int word = 0; word < 2; word++)
            for (const char *c = words[word];; c++) {
                hash = (hash ^ (unsigned char)*c) * UINT32_C(16777619);
                if (!*c) break;
            }
        hash = (hash ^ (uint32_t)calls[i].how) * UINT32_C(16777619);
    }
    return hash;
}

int arguments_of(int call, argument_t arguments[MAX_ARGUMENTS]) {
    int count = 0;
    for (const char *at = calls[call].arguments; *at;) {
        char *end;
        arguments[count].kind = *at++;
        arguments[count++].bytes = (uint8_t)strtoul(at, &end, 10);
        for (at = end; *at == ' ';) at++;
    }
    return count;
}

uint32_t most_bytes(int call) { return strchr(calls[call].arguments, 'm') ? MAX_IMAGE_FRAME : MAX_FRAME; }

int send_all(int socket, const void *bytes, size_t count) {
    for (const char *at = bytes; count;) {
        ssize_t sent = send(socket, at, count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return -1;
        at += sent, count -= (size_t)sent;
    }
    return 0;
}

int receive_all(int socket, void *bytes, size_t count) {
    for (char *at = bytes; count;) {
        ssize_t got = recv(socket, at, count, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return -1;
        at += got, count -= (size_t)got;
    }
    return 0;
}
