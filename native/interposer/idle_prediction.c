/* Predicts when peers are idle: a container publishes the pattern of its requests and pauses in its signal, and the
 * low tier reads it.
 *
 * A launch cannot be stopped, so a container that yields must end its work in time. A stretch is work without a
 * pause that another container could use. A longer stretch and a shorter pause are learned at once, and forgotten
 * slowly. */
#include "kerf.h"
#include <string.h>

/* AWAY: of exponentially distributed pauses, 1 in 148 is longer than 5 times the mean. */
enum { SHORTEST_PAUSE_NS = 100000, FORGET = 64, ENOUGH = 6, AWAY = 5, UNHEARD_NS = 5000000, SEEN_NS = 20000 };

/* The work of this process, by GPU. The caller holds timing.c's lock. */
static struct { uint64_t begun_ns, ended_ns, request_ns, pause_ns, mean_pause_ns, stretches; } arrivals[KERF_MAX_GPUS];

void work_ended(int gpu, uint64_t end_ns) {
    if (end_ns > arrivals[gpu].ended_ns) arrivals[gpu].ended_ns = end_ns;
}

static void learn_pause(int gpu, uint64_t request_ns, uint64_t pause_ns) {
    if (!arrivals[gpu].request_ns) arrivals[gpu].request_ns = request_ns,
        arrivals[gpu].pause_ns = arrivals[gpu].mean_pause_ns = pause_ns;
    if (request_ns > arrivals[gpu].request_ns) arrivals[gpu].request_ns = request_ns;
    else arrivals[gpu].request_ns -= (arrivals[gpu].request_ns - request_ns) / FORGET;
    if (pause_ns < arrivals[gpu].pause_ns) arrivals[gpu].pause_ns = pause_ns;
    else arrivals[gpu].pause_ns += (pause_ns - arrivals[gpu].pause_ns) / FORGET;
    arrivals[gpu].mean_pause_ns = arrivals[gpu].mean_pause_ns - arrivals[gpu].mean_pause_ns / 16 + pause_ns / 16;
}

void work_begins(int gpu, uint64_t now) {
    uint64_t pause_ns, request_ns;
    if (!signals || gpu >= (int)signals->gpu_count) return;
    if (!arrivals[gpu].begun_ns) arrivals[gpu].begun_ns = now;
    if (!arrivals[gpu].ended_ns || now < arrivals[gpu].ended_ns + SHORTEST_PAUSE_NS) return;
    pause_ns = now - arrivals[gpu].ended_ns;
    request_ns = arrivals[gpu].ended_ns - arrivals[gpu].begun_ns;
    arrivals[gpu].begun_ns = now;
    if (!arrivals[gpu].stretches++) return; /* the first stretch contains the program's start */
    learn_pause(gpu, request_ns, pause_ns);
    if (arrivals[gpu].stretches < ENOUGH) return;
    __atomic_store_n(&signals->gpu[gpu].pause_ns, arrivals[gpu].pause_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&signals->gpu[gpu].mean_pause_ns, arrivals[gpu].mean_pause_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&signals->gpu[gpu].request_ns, arrivals[gpu].request_ns, __ATOMIC_RELEASE);
}

static void predict_idle(const struct kerf_signal *peer, unsigned place, moment_t *m) {
    const uint64_t due_ns = peer->gpu[place].due_ns, pause_ns = peer->gpu[place].pause_ns,
        request_ns = peer->gpu[place].request_ns;
    const uint64_t quiet_until_ns = due_ns + pause_ns - pause_ns / 16,
        away_from_ns = due_ns + AWAY * peer->gpu[place].mean_pause_ns;
    if (!request_ns) return;
    if (!m->peers_request_ns || quiet_until_ns < m->quiet_until_ns) m->quiet_until_ns = quiet_until_ns;
    if (!m->peers_request_ns || request_ns < m->peers_request_ns) m->peers_request_ns = request_ns;
    if (away_from_ns > m->away_from_ns) m->away_from_ns = away_from_ns;
}

/* Whether a process's work may be in flight. A process that is busy with something else does not report that its
 * work has ended, so the work counts until well after its estimated end. */
static int may_be_in_flight(const struct kerf_process *p, int gpu, uint64_t now) {
    const uint64_t ns = p->in_flight_ns[gpu], heard_ns = p->heard_ns;
    return ns && (now < heard_ns || (now - heard_ns) / 2 < ns + UNHEARD_NS);
}

/* The number of slots to look at: processes take the lowest free one, so it changes only when one attaches. */
static int slots(void) {
    static uint64_t seen_attaches;
    static int count;
    const uint64_t attaches = __atomic_load_n(&counters->attaches, __ATOMIC_ACQUIRE);
    if (attaches == seen_attaches) return count;
    count = 0;
    for (int i = 0; i < KERF_MAX_PROCESSES; i++)
        if (counters->process[i].state & 1) count = i + 1;
    seen_attaches = attaches;
    return count;
}

uint64_t others_in_flight(int gpu, uint64_t now) {
    const int count = slots();
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) {
        const struct kerf_process *p = &counters->process[i];
        if (i != slot && may_be_in_flight(p, gpu, now) && p->state & 1 && process_alive(i)) sum += p->in_flight_ns[gpu];
    }
    return sum;
}

static void look_at(const struct kerf_signal *peer, unsigned g, moment_t *m) {
    if (peer->gpu[g].busy_until_ns > m->peers_busy_until_ns) m->peers_busy_until_ns = peer->gpu[g].busy_until_ns;
    if (peer->gpu[g].due_ns > m->peers_due_ns) m->peers_due_ns = peer->gpu[g].due_ns;
    if (peer->turn[g].long_until_ns > m->peers_long_until_ns) m->peers_long_until_ns = peer->turn[g].long_until_ns;
    if (peer->turn[g].waiting_until_ns > m->now_ns && peer->turn[g].owed_since_ns < m->peers_owed_since_ns)
        m->peers_owed_since_ns = peer->turn[g].owed_since_ns;
    predict_idle(peer, g, m);
}

/* A launch costs microseconds, and a look at 31 peers 17: one look serves the launches of SEEN_NS, and of 1 us more for
 * each peer. */
void read_peer_signals(int gpu, moment_t *m) {
    static moment_t seen[KERF_MAX_GPUS];
    moment_t *s = &seen[gpu];
    if (!s->now_ns || m->now_ns >= s->now_ns + SEEN_NS + 1000 * orders->peer_count) {
        *s = (moment_t){.now_ns = m->now_ns, .peers_owed_since_ns = UINT64_MAX};
        for (unsigned i = 0; i < orders->peer_count && i < KERF_MAX_PEERS; i++) {
            const struct kerf_signal *peer = peer_signal(i);
            for (unsigned g = 0; peer && g < peer->gpu_count && g < KERF_MAX_GPUS; g++)
                if (!memcmp(peer->gpu[g].uuid, orders->gpu[gpu].uuid, 16)) look_at(peer, g, s);
        }
        note_peers_turns(gpu, s->peers_long_until_ns);
    }
    m->peers_busy_until_ns = s->peers_busy_until_ns, m->peers_due_ns = s->peers_due_ns;
    m->peers_long_until_ns = s->peers_long_until_ns, m->peers_owed_since_ns = s->peers_owed_since_ns;
    m->peers_request_ns = s->peers_request_ns, m->quiet_until_ns = s->quiet_until_ns;
    m->away_from_ns = s->away_from_ns;
}
