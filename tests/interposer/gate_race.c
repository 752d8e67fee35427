/* A race in gate.c: while launches are judged, the agent changes what a GPU's slice may have, as whenever a neighbour
 * comes, ends, is paused or is resized: shares, the timetable and lent time come and go. Prints how many were judged. */
#include <stdio.h>

#include "kerf.h"

enum { LAUNCHES = 3000000 };
static struct kerf_orders agent_orders;
static struct kerf_counters counted;
static struct kerf_signal told;
const struct kerf_orders *orders = &agent_orders;
struct kerf_counters *counters = &counted;
struct kerf_signal *signals = &told;
int slot = 0;
static int over;

struct kerf_process *self(void) { return &counted.process[slot]; }
int agent_is_alive(uint64_t now_ns) { return (void)now_ns, 1; }

static void *agent(void *ignored) {
    struct kerf_gpu_orders *o = &agent_orders.gpu[0];
    for (unsigned i = 0; !__atomic_load_n(&over, __ATOMIC_SEQ_CST); i++) {
        __atomic_store_n(&o->period_ns, i & 1 ? 100000000 : 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&o->lent_milli, i & 2 ? 300 : 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&o->compute_milli, i & 4 ? 500 : 0, __ATOMIC_SEQ_CST);
    }
    return ignored;
}

int main(void) {
    pthread_t changes;
    uint64_t now = 1000000000, until;
    unsigned judged = 0;
    agent_orders.gpu_count = told.gpu_count = 1;
    agent_orders.gpu[0].window_ns = 50000000;
    if (pthread_create(&changes, NULL, agent, NULL)) return 4;
    for (int i = 0; i < LAUNCHES; i++, now += 37000) {
        const moment_t m = {.now_ns = now, .estimate_ns = i % 3 ? 200000 : 20000000, .peers_owed_since_ns = UINT64_MAX};
        watches_peers(0, &m);
        judged += gate(0, &m, &until) <= HELD_BY_AGENT;
        gate_charge(0, m.estimate_ns, 0);
        gate_settle(0, m.estimate_ns, now, now + m.estimate_ns / 2, 0);
    }
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    pthread_join(changes, NULL);
    printf("%d\n", judged == LAUNCHES);
}
