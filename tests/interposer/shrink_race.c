/* A race in account.c: this process has read its limit of 10 GiB; before it counts 2 GiB, the agent lowers the limit
 * to 1 GiB and finds nothing allocated. Prints whether the 2 GiB were granted, what the agent saw, and the account. */
#include <stdio.h>

#include "kerf.h"

static struct kerf_orders agent_orders;
static struct kerf_counters counted;
const struct kerf_orders *orders = &agent_orders;
struct kerf_counters *counters = &counted;
int slot = 0;
static uint64_t seen = ~0ull;

struct kerf_process *self(void) { return &counted.process[slot]; }
int process_alive(int i) { return (void)i, 1; }

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
    if (seen == ~0ull) {
        agent_orders.gpu[0].memory_limit_bytes = 1ull << 30;
        seen = charged(0);
    }
    return __real_pthread_mutex_lock(mutex);
}

int main(void) {
    int won;
    agent_orders.gpu_count = 1;
    agent_orders.granularity_bytes = 2 << 20;
    agent_orders.gpu[0].memory_limit_bytes = 10ull << 30;
    counted.process[0].state = 3;
    won = try_reserve(0, 2ull << 30);
    printf("%d %llu %llu\n", won, (unsigned long long)seen, (unsigned long long)charged(0));
}
