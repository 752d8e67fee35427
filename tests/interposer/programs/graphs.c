/* graphs WAY BYTES: memory of graphs. After each step it compares the device's used bytes with the container's account.
 * Prints the maximum of the used bytes, by how much the account was below them at worst, how many graphs or plain
 * allocations it got, the account before its end, and the last error.
 *   nodes     executable graphs with an allocation each, by all calls that add a node, launched, until one is refused
 *   capture   the same by capture
 *   unrun     the same, never launched
 *   child     a graph whose child graph allocates, until one is refused
 *   steps     60 times: captures, instantiates, launches, waits, destroys
 *   destroyed fills the slice with graphs, destroys them, and allocates plainly until it is refused
 *   trim      the same, and trims before it allocates; then destroys what it has allocated
 *   reset     fills the slice with graphs, launches half of them, and resets the primary context without destroying any
 *   survivor  the same; then launches one, as if the driver still ran it, waits, and compares only then
 *   queries   one executable graph; then queries an event 1000 times, and prints how often the driver was asked for the
 *             memory of graphs meanwhile
 *   busy      one executable graph; then queries an event while another thread is in the driver's cuMemAllocAsync, and
 *             prints 1 */
#include "api.h"
#include "../../../native/interposer/control_block.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

enum { MOST = 256 };
static struct kerf_counters *counters;
static uint64_t most, hidden, bytes;
static CUexec held[MOST];

static uint64_t account(void) { return counters->gpu[0].account & KERF_ACCOUNT_BYTES; }
static void look(void) {
    const uint64_t used = device_used(0);
    if (used > most) most = used;
    if (used > account() && used - account() > hidden) hidden = used - account();
}
static CUgraph made(int turn) {
    graph_node_t node = {.type = NODE_MEM_ALLOC, .alloc = {.pool = {.location = {LOCATION_DEVICE, 0}}, .bytes = bytes}};
    CUgraph graph;
    CUnode added;
    NEED(CALL(cuGraphCreate, , 10000)(&graph, 0u));
    if (turn % 3 == 0) NEED(CALL(cuGraphAddMemAllocNode, , 11040)(&added, graph, NULL, (size_t)0, &node.alloc));
    if (turn % 3 == 1) NEED(CALL(cuGraphAddNode, _v2, 12030)(&added, graph, NULL, NULL, (size_t)0, &node));
    if (turn % 3 == 2) NEED(CALL(cuGraphAddNode, _v3, 13040)(&added, graph, NULL, NULL, (size_t)0, &node));
    return graph;
}
static CUgraph parent(int turn) {
    CUgraph graph;
    CUnode added;
    NEED(CALL(cuGraphCreate, , 10000)(&graph, 0u));
    NEED(CALL(cuGraphAddChildGraphNode, , 10000)(&added, graph, NULL, (size_t)0, made(turn)));
    return graph;
}
static CUgraph captured(CUstream stream) {
    CUgraph graph;
    uint64_t pointer;
    NEED(CALL(cuStreamBeginCapture, _v2, 10010)(stream, 0));
    NEED(CALL(cuMemAllocAsync, , 11020)(&pointer, (size_t)bytes, stream));
    NEED(CALL(cuMemFreeAsync, , 11020)(pointer, stream));
    NEED(CALL(cuStreamEndCapture, , 10000)(stream, &graph));
    return graph;
}
static CUresult executable(CUexec *to, CUgraph graph, int turn) {
    if (turn % 2) return CALL(cuGraphInstantiateWithParams, , 12000)(to, graph, NULL);
    return CALL(cuGraphInstantiate, WithFlags, 12000)(to, graph, 0ull);
}

static int queries(void) {
    uint64_t (*calls)(const char *) = FIGURE(uint64_t(*)(const char *), "kerf_fake_calls");
    uint64_t before;
    CUevent event;
    NEED(CALL(cuEventCreate, , 2000)(&event, 0u));
    NEED(CALL(cuEventRecord, , 2000)(event, NULL));
    NEED(CALL(cuEventSynchronize, , 2000)(event));
    before = calls("cuDeviceGetGraphMemAttribute");
    for (int i = 0; i < 1000; i++) NEED(CALL(cuEventQuery, , 2000)(event));
    printf("%lu\n", calls("cuDeviceGetGraphMemAttribute") - before);
    return 0;
}

static CUcontext context;
static void *query(void *event) {
    NEED(CALL(cuCtxSetCurrent, , 4000)(context));
    CALL(cuEventQuery, , 2000)(event);
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    return NULL;
}
static CUevent awaited;
static void query_elsewhere(void) {
    pthread_t other;
    FIGURE(void (*)(void), "kerf_virtual_leave")();
    pthread_create(&other, NULL, query, awaited);
    pthread_join(other, NULL);
}
static int busy(void) {
    uint64_t pointer;
    NEED(CALL(cuEventCreate, , 2000)(&awaited, 0u));
    FIGURE(void (*)(void (*)(void)), "kerf_fake_at_take")(query_elsewhere);
    alarm(20); /* ends the program if the query waits */
    NEED(CALL(cuMemAllocAsync, , 11020)(&pointer, (size_t)bytes, NULL));
    printf("1\n");
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";
    CUresult result = CUDA_SUCCESS;
    int count = 0, plain = 0, runs = strcmp(what, "unrun");
    char path[512];
    CUstream stream;
    uint64_t pointer[MOST];
    if (argc < 3) return 2;
    bytes = strtoull(argv[2], NULL, 10);
    open_driver();
    context = use_device(0);
    snprintf(path, sizeof path, "%s/counters", getenv("KERF_DIRECTORY"));
    counters = mmap(NULL, sizeof *counters, PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
    if (counters == MAP_FAILED) return 4;
    NEED(CALL(cuStreamCreate, , 2000)(&stream, 1u));
    if (!strcmp(what, "queries") || !strcmp(what, "busy")) {
        NEED(executable(&held[0], made(0), 0));
        return strcmp(what, "busy") ? queries() : busy();
    }
    while (count < (strcmp(what, "steps") ? MOST : 60) && !result) {
        CUgraph graph = !strcmp(what, "capture") || !strcmp(what, "steps") ? captured(stream)
            : !strcmp(what, "child") ? parent(count) : made(count);
        result = executable(&held[count], graph, count);
        look();
        if (result) break;
        if (runs && (strcmp(what, "reset") || count % 2)) NEED(CALL(cuGraphLaunch, , 10000)(held[count], stream));
        look();
        if (!strcmp(what, "steps")) {
            NEED(CALL(cuStreamSynchronize, , 2000)(stream));
            NEED(CALL(cuGraphExecDestroy, , 10000)(held[count]));
        }
        count++;
        look();
    }
    if (!strcmp(what, "destroyed") || !strcmp(what, "trim")) {
        NEED(CALL(cuCtxSynchronize, , 2000)());
        for (int i = 0; i < count; i++) NEED(CALL(cuGraphExecDestroy, , 10000)(held[i]));
        look();
        if (!strcmp(what, "trim")) NEED(CALL(cuDeviceGraphMemTrim, , 11040)(0));
        look();
        while (plain < MOST && !(result = CALL(cuMemAlloc, _v2, 3020)(&pointer[plain], (size_t)bytes))) plain++, look();
        for (int i = 0; i < plain && !strcmp(what, "trim"); i++) NEED(CALL(cuMemFree, _v2, 3020)(pointer[i]));
        count = plain;
    }
    if (!strcmp(what, "reset") || !strcmp(what, "survivor")) {
        NEED(CALL(cuCtxSynchronize, , 2000)());
        NEED(CALL(cuDevicePrimaryCtxReset, , 11000)(0));
        most = hidden = 0;
        if (!strcmp(what, "survivor")) {
            use_device(0);
            NEED(CALL(cuCtxSynchronize, , 2000)());
            NEED(CALL(cuGraphLaunch, , 10000)(held[0], NULL));
            NEED(CALL(cuCtxSynchronize, , 2000)());
        }
        look();
    }
    printf("%lu %lu %d %lu %d\n", most, hidden, count, account(), result);
    return 0;
}
