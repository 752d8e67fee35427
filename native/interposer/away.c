/* Calls of a container whose memory is on the host, or on its way there. The driver lets them wait too, but there nobody
 * sees that they do. Here the process's slot says so, and the agent knows that the container wants its GPU again. */
#include "kerf.h"

enum { LEAST_NS = 1000000, MOST_NS = 20000000, DEFAULT_STALE_NS = 2000000000 };

int agent_is_alive(uint64_t now_ns) {
    const uint64_t stale_ns = orders->stale_after_ns ? orders->stale_after_ns : DEFAULT_STALE_NS;
    const uint64_t beat_ns = __atomic_load_n(&orders->heartbeat_ns, __ATOMIC_SEQ_CST);
    return now_ns <= beat_ns || now_ns - beat_ns < stale_ns;
}

uint64_t held_poll_ns(uint64_t waited_ns) {
    const uint64_t ns = waited_ns / 100;
    return ns < LEAST_NS ? LEAST_NS : ns > MOST_NS ? MOST_NS : ns;
}

/* The limit of a container on the host is 0. */
int is_away(int gpu) {
    return __atomic_load_n(&orders->paused, __ATOMIC_SEQ_CST)
        && !__atomic_load_n(&orders->gpu[gpu].memory_limit_bytes, __ATOMIC_SEQ_CST);
}

static int any_away(void) {
    const unsigned count = orders->gpu_count < KERF_MAX_GPUS ? orders->gpu_count : KERF_MAX_GPUS;
    for (unsigned gpu = 0; gpu < count; gpu++)
        if (is_away((int)gpu)) return 1;
    return 0;
}

/* The driver's calls are no points of cancellation: a thread that was cancelled here would seem to wait for ever. */
void wait_while_away(void) {
    uint64_t begun = 0, now;
    int before;
    if (!any_away()) return;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    while (any_away() && agent_is_alive(now = now_ns())) {
        if (!begun) {
            begun = now;
            __atomic_add_fetch(&self()->waiting, 1, __ATOMIC_RELAXED);
        }
        sleep_until(now + held_poll_ns(now - begun));
    }
    if (begun) __atomic_add_fetch(&self()->waiting, -1, __ATOMIC_RELAXED);
    pthread_setcancelstate(before, NULL);
}

/* Whether work is complete is not known while nobody can ask the driver, and a thread that asks again and again must not
 * stand still: the watchdog of NCCL in PyTorch does, and another thread ends the process if that one is stuck for eight
 * minutes. Each question takes a moment in which the slot says that the program wants the GPU. */
int asks_while_away(void) {
    int before;
    if (!any_away() || !agent_is_alive(now_ns())) return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    __atomic_add_fetch(&self()->waiting, 1, __ATOMIC_RELAXED);
    sleep_until(now_ns() + MOST_NS);
    __atomic_add_fetch(&self()->waiting, -1, __ATOMIC_RELAXED);
    pthread_setcancelstate(before, NULL);
    return any_away() && agent_is_alive(now_ns());
}
