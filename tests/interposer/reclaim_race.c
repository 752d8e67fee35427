/* A race in account.c: while this process considers slot 5 dead, another process reclaims the slot, and a third
 * takes it and charges 10 GiB. Prints the account then, and after the third process has freed its memory. */
#include <stdio.h>

#include "kerf.h"

enum { OURS = 0, CONTESTED = 5 };
static const uint64_t CHARGED = 10ull << 30;
static struct kerf_orders agent_orders;
static struct kerf_counters counted;
const struct kerf_orders *orders = &agent_orders;
struct kerf_counters *counters = &counted;
int slot = OURS;
static int taken;

struct kerf_process *self(void) { return &counted.process[slot]; }

static void another_reclaims_it_and_a_third_takes_it(void) {
    struct kerf_process *p = &counted.process[CONTESTED];
    p->state += 1;
    p->charged_bytes[0] = 0;
    counted.gpu[0].account = 0;
    p->state += 3;
    slot = CONTESTED;
    if (!try_reserve(0, CHARGED)) printf("refused ");
    slot = OURS;
}

int process_alive(int i) {
    if (i != CONTESTED || taken) return 1;
    taken = 1;
    another_reclaims_it_and_a_third_takes_it();
    return 0;
}

int main(void) {
    agent_orders.gpu_count = 1;
    agent_orders.granularity_bytes = 2 << 20;
    agent_orders.gpu[0].memory_limit_bytes = CHARGED;
    counted.process[OURS].state = counted.process[CONTESTED].state = 3;
    counted.process[CONTESTED].charged_bytes[0] = counted.gpu[0].account = 2ull << 30;
    reclaim();
    printf("%llu ", (unsigned long long)charged(0));
    slot = CONTESTED;
    release(0, CHARGED);
    printf("%llu\n", (unsigned long long)charged(0));
}
