/* The virtual clock and the devices. */
#include "world.h"
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Thread_local int mine = -1;
static pthread_key_t at_exit;
_Thread_local uint64_t last_of_thread;

/* By GPU. */
static queue_t *queue(int process, int gpu) {
    process_t *p = &world()->process[process];
    return &p->queue[p->device_on[gpu]];
}
static int pending(int process, int device) {
    return world()->process[process].used && queue(process, device)->completed < queue(process, device)->submitted;
}
static int next_process(int device, int after) {
    for (int i = 1; i <= PROCESSES; i++)
        if (pending((after + i + PROCESSES) % PROCESSES, device)) return (after + i + PROCESSES) % PROCESSES;
    return -1;
}

static uint64_t *count_of(int process, const item_t *item) {
    return item->place <= MEETINGS ? &world()->process[process].meeting[item->place - 1].count
        : &world()->rally[item->place - 1 - MEETINGS];
}

static void finish(int process, int device) {
    queue_t *q = queue(process, device);
    item_t *item = &q->item[q->completed % DEPTH];
    if (item->event >= 0) {
        event_t *event = &world()->process[process].event[item->event];
        if (event->recording == item->recording) event->done_ns = world()->device[device].at_ns;
    }
    q->completed++;
}

/* Runs a device until a time. */
static void run(int device, uint64_t until_ns) {
    device_t *d = &world()->device[device];
    for (;;) {
        int others;
        item_t *item;
        uint64_t span;
        if (d->running < 0 || !pending(d->running, device) ||
            (d->slice_used_ns >= world()->slice_ns && next_process(device, d->running) != d->running)) {
            d->running = next_process(device, d->running);
            d->slice_used_ns = 0;
        }
        if (d->running < 0) break;
        if (d->resident != d->running + 1) {
            d->resident = d->running + 1;
            d->switch_left_ns = world()->switch_ns;
        }
        if (d->switch_left_ns) {
            if (d->at_ns >= until_ns) return;
            span = until_ns - d->at_ns < d->switch_left_ns ? until_ns - d->at_ns : d->switch_left_ns;
            d->switch_left_ns -= span;
            d->at_ns += span;
            continue;
        }
        item = &queue(d->running, device)->item[queue(d->running, device)->completed % DEPTH];
        if (item->awaits && queue(d->running, device)->launched >= item->awaits) item->left_ns = 0;
        if (item->place && !item->came) {
            ++*count_of(d->running, item);
            world()->meetings++;
            item->came = 1;
        }
        if (item->place && *count_of(d->running, item) < item->meets) {
            /* It spins. Its own time begins when all have come. */
            uint64_t spun;
            if (d->at_ns >= until_ns) return;
            spun = until_ns - d->at_ns;
            if (next_process(device, d->running) != d->running && spun > world()->slice_ns - d->slice_used_ns)
                spun = world()->slice_ns - d->slice_used_ns;
            d->at_ns += spun;
            d->slice_used_ns += spun;
            queue(d->running, device)->gpu_ns += spun;
            continue;
        }
        if (!item->left_ns) {
            finish(d->running, device);
            continue;
        }
        if (d->at_ns >= until_ns) return;
        others = next_process(device, d->running) != d->running;
        span = until_ns - d->at_ns < item->left_ns ? until_ns - d->at_ns : item->left_ns;
        if (others && span > world()->slice_ns - d->slice_used_ns) span = world()->slice_ns - d->slice_used_ns;
        item->left_ns -= span;
        d->at_ns += span;
        d->slice_used_ns += span;
        if (!item->other) queue(d->running, device)->gpu_ns += span;
    }
    if (d->at_ns < until_ns) d->at_ns = until_ns;
}

void settle(int device) { run(device, world()->now_ns); }

/* A meeting that begins on one device may end a wait on another one at the same time. */
static void run_all(uint64_t until_ns) {
    uint64_t before;
    do {
        before = world()->meetings;
        for (int d = 0; d < world()->devices; d++) run(d, until_ns);
    } while (world()->meetings != before);
}

static int spins(int process, int device) {
    const item_t *item = &queue(process, device)->item[queue(process, device)->completed % DEPTH];
    return item->place && *count_of(process, item) < item->meets;
}

/* Returns when something may change on the device: the end of work, or of a time slice. */
static uint64_t next_change(int device) {
    device_t *d = &world()->device[device];
    uint64_t left;
    run(device, d->at_ns);
    if (d->running < 0) return NEVER;
    if (d->switch_left_ns) return d->at_ns + d->switch_left_ns;
    left = queue(d->running, device)->item[queue(d->running, device)->completed % DEPTH].left_ns;
    if (spins(d->running, device)) left = NEVER - d->at_ns;
    if (next_process(device, d->running) != d->running && left > world()->slice_ns - d->slice_used_ns)
        left = world()->slice_ns - d->slice_used_ns;
    return d->at_ns + left;
}

static int over(const client_t *c) {
    const process_t *p = &world()->process[c->kind == DRAINED ? c->seq : (uint64_t)c->process];
    if (c->until_ns <= world()->now_ns) return 1;
    switch (c->kind) {
    case WORK: return p->queue[c->device].completed >= c->seq;
    case ROOM: return p->queue[c->device].submitted - p->queue[c->device].completed < DEPTH;
    case UNLOCKED: return !p->locked;
    case DRAINED:
        for (int d = 0; d < DEVICES; d++)
            if (p->used && p->queue[d].completed < p->queue[d].submitted) return 0;
        return 1;
    default: return 0;
    }
}

/* Hands the baton to the next client whose wait is over, and advances time until there is one. */
static void pass(void) {
    world_t *w = world();
    int clients = 0;
    bury();
    if (w->baton >= 0) return;
    for (int c = 0; c < CLIENTS; c++) clients += w->client[c].used;
    if (clients < w->expected) return;
    w->expected = 0;
    for (;;) {
        uint64_t next = NEVER;
        if (w->meetings) run_all(w->now_ns);
        for (int c = 0; c < CLIENTS; c++)
            if (w->client[c].used && over(&w->client[c])) {
                w->baton = c;
                w->client[c].word++;
                syscall(SYS_futex, &w->client[c].word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
                return;
            }
        for (int c = 0; c < CLIENTS; c++)
            if (w->client[c].used && w->client[c].until_ns < next) next = w->client[c].until_ns;
        for (int d = 0; d < w->devices; d++) {
            uint64_t change = next_change(d);
            if (change < next) next = change;
        }
        if (next == NEVER) return; /* only a process that is not a client can change anything now */
        if (next > w->now_ns) w->now_ns = next;
        run_all(w->now_ns);
    }
}

/* Waits until the caller has the baton, and checks from time to time whether its holder has died. The caller holds
 * the lock on entry and exit. */
static void until_mine(void) {
    world_t *w = world();
    const struct timespec moment = {0, 50 * 1000 * 1000};
    for (;;) {
        uint32_t word = w->client[mine].word;
        if (w->baton >= 0 && !alive(w->client[w->baton].process)) bury();
        if (w->baton < 0) pass();
        if (w->baton == mine) return;
        word = w->client[mine].word;
        unlock();
        syscall(SYS_futex, &w->client[mine].word, FUTEX_WAIT, word, &moment, NULL, 0);
        lock();
    }
}

static void join(void) {
    static _Atomic int joined;
    const char *wish = getenv("KERF_FAKE_CUDA_CLIENT");
    int process = me(), first = joined++;
    lock();
    bury();
    mine = wish && !first ? atoi(wish) : -1;
    for (int c = 64; mine < 0 && c < CLIENTS; c++)
        if (!world()->client[c].used) mine = c;
    if (mine < 0) abort();
    world()->client[mine] = (client_t){1, process, 0, world()->client[mine].word, TIME, world()->now_ns, 0};
    until_mine();
    unlock();
    pthread_setspecific(at_exit, world());
}

void enter(void) {
    if (mine < 0) join();
}

void wait_for(enum waits kind, int device, uint64_t seq, uint64_t until_ns) {
    world_t *w = world();
    enter();
    lock();
    w->client[mine] = (client_t){1, me(), device, w->client[mine].word, kind, until_ns, seq};
    w->baton = -1;
    pass();
    until_mine();
    w->client[mine].kind = NOTHING;
    w->client[mine].until_ns = NEVER;
    unlock();
}

void while_locked(void) {
    if (world()->process[me()].locked) wait_for(UNLOCKED, 0, 0, NEVER);
}

void spend(uint64_t ns) {
    enter();
    wait_for(TIME, 0, 0, world()->now_ns + ns);
}
uint64_t kerf_virtual_now(void) { return world()->now_ns; }
void kerf_virtual_sleep_until(uint64_t ns) {
    enter();
    wait_for(TIME, 0, 0, ns > world()->now_ns ? ns + world()->late_ns : ns);
}

void kerf_virtual_leave(void) {
    if (mine < 0) return;
    lock();
    world()->client[mine].used = 0;
    if (world()->baton == mine) world()->baton = -1;
    pass();
    unlock();
    mine = -1;
}

static uint64_t put(int device, uint64_t ns, int event, uint64_t awaits, int other, int place, uint64_t meets) {
    queue_t *q = &world()->process[me()].queue[device];
    uint64_t seq;
    enter();
    while_locked();
    if (q->submitted - q->completed >= DEPTH) wait_for(ROOM, device, 0, NEVER);
    lock();
    settle(gpu_of(device));
    q->launched += event < 0 && !other;
    q->item[q->submitted % DEPTH] = (item_t){ns, awaits ? q->launched + awaits : 0, meets, event, event >= 0
        ? world()->process[me()].event[event].recording : 0, other, place, 0};
    seq = ++q->submitted;
    if (event < 0) last_of_thread = seq;
    settle(gpu_of(device));
    unlock();
    return seq;
}

uint64_t submit(int device, uint64_t ns, int event, uint64_t awaits) {
    return put(device, ns, event, awaits, event >= 0, 0, 0);
}
void submit_other(int device, uint64_t ns) { put(device, ns, -1, 0, 1, 0, 0); }
void submit_meeting(int device, uint64_t ns, uint64_t address, uint64_t count) {
    process_t *p = &world()->process[me()];
    int place = 0;
    lock();
    while (place < MEETINGS - 1 && p->meeting[place].address && p->meeting[place].address != address) place++;
    p->meeting[place].address = address;
    unlock();
    put(device, ns, -1, 0, 0, place + 1, count);
}

void submit_rally(int device, uint64_t ns, uint64_t number, uint64_t count) {
    put(device, ns, -1, 0, 0, 1 + MEETINGS + (int)(number % RALLIES), count);
}

/* Only in a world that processes share: a private one has no other clients. */
void kerf_virtual_expect(int clients) {
    lock();
    if (getenv("KERF_FAKE_CUDA")) world()->expected = clients;
    unlock();
}

static void thread_ends(void *unused) {
    (void)unused;
    kerf_virtual_leave();
}
static void forked(void) { mine = -1; }
__attribute__((constructor)) static void begin(void) {
    pthread_key_create(&at_exit, thread_ends);
    pthread_atfork(NULL, NULL, forked);
}
__attribute__((destructor)) static void end(void) { kerf_virtual_leave(); }
