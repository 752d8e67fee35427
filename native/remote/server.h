/* The parts of the server. */
#ifndef SERVER_H
#define SERVER_H
enum { WORKER_CONTROL = 3 }; /* the worker's descriptor over which it gets connections */
#include "../interposer/driver.h"
#include "wire.h"

typedef CUresult (*function_t)();
typedef struct { size_t bytes; char *data; const char *text; int kind; } output_t;
typedef struct {
    uint64_t words[MAX_ARGUMENTS], sent[MAX_ARGUMENTS]; /* sent: bytes of what the client sent for an argument */
    output_t output[MAX_ARGUMENTS];
    void *parameters[MAX_PARAMETERS], *extra[5];
    uint32_t offset[MAX_PARAMETERS], parameter_count;
    size_t packed, parameter_bytes;
    CUresult wrong; /* why it cannot be made */
} made_call_t;

/* checks.c: what the driver would believe of a call, and a client may not say. */
int find_checks(void *driver);
int shares_memory(void *driver);
/* 0, an error without which the driver is not reached, or MALFORMED. */
enum { MALFORMED = -1 };
CUresult before_call(int call, made_call_t *made, int count, const argument_t *arguments);
int after_call(int call, const made_call_t *made, int count, const argument_t *arguments, CUresult result);
int leave_root(void); /* user.c: 0, or -1 after a message */
int work(const char *driver); /* a worker, until its client ends; the exit status */
#endif
