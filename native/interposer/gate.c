/* Decides when a launch may begin: a token bucket of GPU time, a timetable, bounded work in flight, the low tier's
 * gaps.
 *
 * Tokens are GPU time that the container may still begin. They grow by its share of the elapsed time, and fall by
 * the GPU time that its work took, measured by the driver's events. Work in flight is charged by estimate until it
 * is measured. Tokens may fall below 0 by one launch; the next launch waits until the debt is paid. So the share is
 * exact in the long run, whatever the lengths of the launches.
 *
 * If two containers have work at the same time, the driver time-slices them, and an event then measures the other's
 * time, too. The timetable separates them: launches begin only in the container's own window of each period. `reach`
 * is how far into the window, or past its end, launches may begin. It grows by a step for each period that left
 * tokens unspent (additive increase) and shrinks by an eighth when work ran past the window without need
 * (multiplicative decrease). At the beginning of a window, a container waits briefly for a peer whose work still
 * runs, but no longer than 5 ms or a tenth of the period, because a peer may lie.
 *
 * Launches of more than a sixth of a window waste the timetable, or do not fit it. While any slice has such launches,
 * the slices take turns instead: when no peer's work is in flight, the slice goes whose share has been owed to it for
 * the longest time (start-time fair queueing), a long launch alone, short ones QUANTUM_NS at a time. Each slice
 * announces in its signal that it waits, and since when it is owed its share. A peer that lies delays a slice until
 * that has saved all the tokens that it may have.
 *
 * A slice may have more than its share in time that is lent: while no peer is busy, by launches that delay none of
 * them, as in the low tier. Such work is charged to a token bucket of its own, and takes nothing of its windows.
 *
 * The container can write its counters, and so its tokens. Hence `own_bucket`: a second token bucket in the
 * process's own memory, with the same arithmetic for the process's work alone. In a process that does not forge, it
 * is never emptier than the container's bucket. A process that forges the control block still gets only the
 * container's share of the time; several of them each get a part of it, once the agent sees what they use together. */
#include "kerf.h"

enum { MILLI = 1000, POLL_NS = 1000000, DEFAULT_BOUND_NS = 4000000 };
enum { LOOSE_PERIOD_NS = 100000000, LOOSE_CAP_NS = 20000000, LOW_DEBT_NS = 50000000, FOLLOW_DEBT_NS = 50000000, REFILL_NS = 10000,
    YIELD_NS = 5000000 };
#define DEBT_NS (INT64_C(1) << 50) /* eleven days */
/* AHEAD_NS: no process is so slow that another's refill is this far in its future. LONG_PART: a launch of more than
 * this part of its window is long. LONG_PERIODS: for how many periods after a long launch the slices take turns. */
enum { AHEAD_NS = 1000000000, SAVED_PERIODS = 10, TAIL = 25, LONG_PART = 6, LONG_PERIODS = 10, QUANTUM_NS = 6000000,
    SAVED_NS = 1000000, ROOM_PART = 8, EARLY_NS = 100000, LENT_BOUND_NS = 500000, LENT_CAP_NS = 20000000 };
#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), v, __ATOMIC_SEQ_CST)
#define ADD(x, v) __atomic_add_fetch(&(x), v, __ATOMIC_SEQ_CST)

/* What the agent orders of a GPU, read once. A change may come at any moment, when a neighbour comes, ends or is
 * resized: what is divided by must be what was checked. */
static struct kerf_gpu_orders read_orders(int gpu) {
    const struct kerf_gpu_orders *now = &orders->gpu[gpu];
    return (struct kerf_gpu_orders){.compute_milli = LOAD(now->compute_milli), .in_flight_us = LOAD(now->in_flight_us),
        .private_milli = LOAD(now->private_milli), .period_ns = LOAD(now->period_ns),
        .window_start_ns = LOAD(now->window_start_ns), .window_ns = LOAD(now->window_ns),
        .lent_milli = LOAD(now->lent_milli)};
}

static int limited(const struct kerf_gpu_orders *o) { return o->compute_milli > 0 && o->compute_milli < MILLI; }
int is_limited(int gpu) { return orders->tier != KERF_TIER_LOW && limited(&orders->gpu[gpu]); }

int one_at_a_time(int gpu) { return LOAD(orders->gpu[gpu].in_flight_us) == KERF_ONE_AT_A_TIME; }

enum timing must_time(void) {
    int for_peers = orders->peer_count > 0;
    if (orders->tier == KERF_TIER_LOW || orders->paused) return ALWAYS_TIMED;
    for (int i = 0; i < (int)orders->gpu_count && i < KERF_MAX_GPUS; i++) {
        if (limited(&orders->gpu[i]) || orders->gpu[i].gate || one_at_a_time(i)) return ALWAYS_TIMED;
        for_peers |= orders->gpu[i].in_flight_us > 0;
    }
    return !for_peers ? NEVER_TIMED : LOAD(orders->peers_held) ? TIMED_WITHOUT_AGENT : ALWAYS_TIMED;
}

static int is_held_by_agent(int gpu, uint64_t now_ns) {
    return (LOAD(orders->paused) || LOAD(orders->gpu[gpu].gate) == KERF_GATE_CLOSED) && agent_is_alive(now_ns);
}

static int64_t window_of(const struct kerf_gpu_orders *o) {
    return (int64_t)(o->period_ns && o->window_ns < o->period_ns ? o->window_ns : 0);
}

/* The process's own state of each GPU, independent of the control block. The caller holds timing.c's lock. */
static struct {
    uint64_t filled_ns, seen_ns, busy_from_ns, busy_until_ns; /* seen: the latest refill of the container's bucket */
    int64_t tokens_ns, cap_ns;
    /* at the beginning of a window: how long it may wait, how long it has waited */
    uint64_t period, patience_ns, yielded_ns;
    uint64_t awaited_ns;                      /* when the long launch for which it waited last is due */
    uint64_t owed_ns;                         /* time that it waited in its windows and has not recovered */
} own_bucket[KERF_MAX_GPUS];

static int64_t earned(uint64_t from_ns, uint64_t now_ns, uint64_t milli) {
    return now_ns > from_ns ? (int64_t)((__uint128_t)(now_ns - from_ns) * milli / MILLI) : 0;
}

static void refill_own_bucket(int gpu, uint64_t milli, int64_t cap, uint64_t now_ns) {
    const uint64_t last = own_bucket[gpu].filled_ns;
    own_bucket[gpu].cap_ns = cap;
    if (now_ns <= last) return;
    own_bucket[gpu].filled_ns = now_ns;
    own_bucket[gpu].tokens_ns = last ? own_bucket[gpu].tokens_ns + earned(last, now_ns, milli) : cap;
    /* twice: rounding must not make it emptier than the container's bucket */
    if (own_bucket[gpu].tokens_ns > 2 * cap) own_bucket[gpu].tokens_ns = 2 * cap;
}

/* In a container that forges its counters in several processes, each gets its part of the share. */
static uint64_t private_milli(const struct kerf_gpu_orders *o, uint64_t milli) {
    return o->private_milli && o->private_milli < milli ? o->private_milli : milli;
}

static void refill(int gpu, const struct kerf_gpu_orders *o, uint64_t milli, uint64_t estimate_ns, uint64_t now_ns) {
    struct kerf_gpu_counters *c = &counters->gpu[gpu];
    const int64_t window = window_of(o);
    const int64_t loose = (int64_t)(LOOSE_PERIOD_NS / MILLI * milli);
    const int64_t cap = window ? (int64_t)(o->period_ns * milli / MILLI + estimate_ns)
        : loose < LOOSE_CAP_NS ? loose : LOOSE_CAP_NS;
    uint64_t last = LOAD(c->refilled_ns), from;
    int64_t tokens;
    refill_own_bucket(gpu, private_milli(o, milli), cap, now_ns);
    if (last > now_ns + AHEAD_NS) from = now_ns; /* forged: start from now */
    else if (now_ns < last + REFILL_NS) return;
    else from = last > own_bucket[gpu].seen_ns ? last : own_bucket[gpu].seen_ns;
    if (!__atomic_compare_exchange_n(&c->refilled_ns, &last, now_ns, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return;
    own_bucket[gpu].seen_ns = now_ns;
    if (!last && from == last) { /* the long-run level at the beginning of a window */
        STORE(c->tokens_ns, window - window * (int64_t)milli / MILLI);
        return;
    }
    tokens = ADD(c->tokens_ns, earned(from, now_ns, milli));
    if (tokens > cap) ADD(c->tokens_ns, cap - tokens);
}

/* Returns the GPU time that may begin: the lower of the two buckets. The container's counts only up to its capacity. */
static int64_t tokens_of(int gpu) {
    const int64_t own = own_bucket[gpu].tokens_ns;
    int64_t tokens = LOAD(counters->gpu[gpu].tokens_ns);
    if (tokens > own_bucket[gpu].cap_ns) tokens = own_bucket[gpu].cap_ns;
    if (tokens < -DEBT_NS) tokens = -DEBT_NS; /* forged to its own disadvantage */
    return tokens < own ? tokens : own;
}

static uint64_t patience(const struct kerf_gpu_orders *o) {
    return o->period_ns / 10 < YIELD_NS ? o->period_ns / 10 : YIELD_NS;
}

/* Limits `reach` for a launch of that length. A launch that begins late may end late. */
static uint64_t reach_in_bounds(const struct kerf_gpu_orders *o, uint64_t estimate_ns, uint64_t reach) {
    const uint64_t slide = estimate_ns > patience(o) ? estimate_ns : patience(o);
    const uint64_t max_reach = o->window_ns + (slide < o->window_ns ? slide : o->window_ns);
    return reach > max_reach ? max_reach : reach < o->window_ns / 2 ? o->window_ns / 2 : reach;
}

/* Adapts `reach` once in each period. */
static void adapt(int gpu, const struct kerf_gpu_orders *o, uint64_t estimate_ns, uint64_t now_ns) {
    struct kerf_gpu_counters *c = &counters->gpu[gpu];
    const uint64_t period = now_ns / o->period_ns, step = o->window_ns / 16 + 1;
    const uint64_t last_end = period ? (period - 1) * o->period_ns + o->window_start_ns + o->window_ns : 0;
    const int64_t unspent = tokens_of(gpu) - (int64_t)(o->window_ns - o->window_ns * o->compute_milli / MILLI);
    uint64_t before = LOAD(c->adapted_period), reach = LOAD(c->reach_ns);
    if (before == period || !__atomic_compare_exchange_n(&c->adapted_period, &before, period, 0, __ATOMIC_SEQ_CST,
        __ATOMIC_SEQ_CST)) return;
    if (!reach) reach = o->window_ns;
    else if (unspent > (int64_t)step) reach += step;
    else if (unspent < 0 && LOAD(c->busy_until_ns) > last_end + step) reach -= reach / 8;
    /* what it leaves unspent while it has lent time tells nothing */
    if (o->lent_milli && reach > o->window_ns) reach = o->window_ns;
    STORE(c->reach_ns, reach_in_bounds(o, estimate_ns, reach));
}

static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Returns how long the beginning of a window may wait for a peer's work that runs past the peer's window: 5 ms or a
 * tenth of the period; for a launch longer than that, the unused waiting time of the last periods, too. So a peer
 * that always claims to be at work costs a tenth of the time at most. */
static uint64_t saved_patience(int gpu, const struct kerf_gpu_orders *o, uint64_t now_ns) {
    const uint64_t period = now_ns / o->period_ns, periods = period - own_bucket[gpu].period;
    if (!periods) return own_bucket[gpu].patience_ns;
    own_bucket[gpu].patience_ns -= own_bucket[gpu].yielded_ns < own_bucket[gpu].patience_ns ? own_bucket[gpu].yielded_ns
        : own_bucket[gpu].patience_ns;
    own_bucket[gpu].patience_ns += patience(o) * (periods < SAVED_PERIODS ? periods : SAVED_PERIODS);
    if (own_bucket[gpu].patience_ns > patience(o) * SAVED_PERIODS)
        own_bucket[gpu].patience_ns = patience(o) * SAVED_PERIODS;
    own_bucket[gpu].owed_ns += own_bucket[gpu].yielded_ns;
    if (own_bucket[gpu].owed_ns > 2 * o->period_ns) own_bucket[gpu].owed_ns = 2 * o->period_ns;
    own_bucket[gpu].period = period;
    own_bucket[gpu].yielded_ns = 0;
    return own_bucket[gpu].patience_ns;
}

/* Returns the time that the slice is behind its share, beyond what every slice accumulates between two windows; 0 if
 * it is little. */
static uint64_t behind(int gpu, const struct kerf_gpu_orders *o, uint64_t since_window_ns) {
    const int64_t unspent = tokens_of(gpu) - (int64_t)(since_window_ns * o->compute_milli / MILLI);
    return !o->lent_milli && unspent > (int64_t)patience(o) / 2 ? (uint64_t)unspent : 0;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Returns 0 if a launch that begins at `begin_ns` is inside the window; otherwise when to try again. */
static uint64_t window_wait(int gpu, const struct kerf_gpu_orders *o, const moment_t *m, uint64_t begin_ns) {
    const uint64_t start = m->now_ns / o->period_ns * o->period_ns + o->window_start_ns, half_ns = m->estimate_ns / 2;
    const uint64_t reach = reach_in_bounds(o, m->estimate_ns, LOAD(counters->gpu[gpu].reach_ns));
    /* a pause of the peers in which the GPU can change to this context and back without loss */
    const uint64_t away_ns = m->peers_due_ns ? m->peers_due_ns + 2 * SWITCH_NS : 0;
    const uint64_t soon = start + patience(o), latest = start + saved_patience(gpu, o, m->now_ns);
    if (m->now_ns < start) { /* outside its window: only to recover lost time, and only while no peer is at work */
        const uint64_t allowed_ns = larger(own_bucket[gpu].owed_ns,
            behind(gpu, o, m->now_ns + o->period_ns - start - o->window_ns));
        if (begin_ns + half_ns > m->now_ns + allowed_ns) return start;
        return away_ns > m->now_ns ? sooner(away_ns, start) : 0;
    }
    if (begin_ns == m->now_ns && m->peers_due_ns > m->now_ns) { /* the previous window's work runs past its end */
        /* one long launch */
        const int longer = m->now_ns < soon ? m->peers_due_ns > soon : m->peers_due_ns == own_bucket[gpu].awaited_ns;
        if (longer && m->now_ns < latest) {
            own_bucket[gpu].awaited_ns = m->peers_due_ns;
            own_bucket[gpu].yielded_ns = sooner(m->peers_due_ns, latest) - start;
            return sooner(m->peers_due_ns, latest);
        }
        if (m->now_ns < soon) return sooner(m->peers_due_ns, soon);
    }
    adapt(gpu, o, m->estimate_ns, m->now_ns);
    /* it fits no window */
    if (begin_ns == m->now_ns && m->estimate_ns > o->window_ns && m->now_ns < start + o->window_ns) return 0;
    if (begin_ns + half_ns <= start + reach) return 0;
    if (begin_ns + half_ns > start + o->window_ns + own_bucket[gpu].owed_ns + own_bucket[gpu].yielded_ns)
        return start + o->period_ns;
    return away_ns > m->now_ns ? sooner(away_ns, start + o->period_ns) : 0;
}

/* When a launch began last in a pause of the peers. While they have had no work since, the GPU has this context. */
static uint64_t began_in_pause_ns[KERF_MAX_GPUS];

/* Whether a launch of the low tier could delay a peer's next request by more than a twenty-fifth of the request's
 * length. A launch cannot be stopped, so it must end before the peer is likely to be back, or be short. Then the GPU
 * changes back to the peer's context, or there, back and there, if the driver lets a request begin first: `changes`.
 * Where a request is so short that one change is more than that, a pause is used only if it is expected to be long
 * enough for two and as much work. A launch of unknown length passes, once. */
static int would_delay_peer(int gpu, const moment_t *m, uint64_t in_flight_ns, uint64_t changes) {
    const uint64_t may_delay_ns = m->peers_request_ns / TAIL;
    const int is_inside = began_in_pause_ns[gpu] >= m->peers_due_ns;
    if (!m->peers_request_ns || !m->estimate_ns || m->now_ns >= m->away_from_ns) return 0;
    if (in_flight_ns + m->estimate_ns + changes * SWITCH_NS <= may_delay_ns) return 0;
    if (SWITCH_NS > may_delay_ns && !is_inside && m->now_ns + 4 * SWITCH_NS > m->quiet_until_ns) return 1;
    return m->now_ns + (is_inside ? 0 : SWITCH_NS) + in_flight_ns + m->estimate_ns > m->quiet_until_ns;
}

static uint64_t turns_until_ns[KERF_MAX_GPUS]; /* of the peers, when their signals were read last */
void note_peers_turns(int gpu, uint64_t until_ns) { turns_until_ns[gpu] = until_ns; }
static int peers_take_turns(int gpu, uint64_t now_ns) { return turns_until_ns[gpu] > now_ns; }

/* Since when its share has been owed to the slice: its start tag. The window's start makes it another for each
 * slice. */
static uint64_t owed_since(int gpu, const struct kerf_gpu_orders *o, uint64_t now_ns) {
    return now_ns - (uint64_t)(tokens_of(gpu) * MILLI / (int64_t)o->compute_milli) + o->window_start_ns / MILLI;
}

/* The start tag of a slice that does not have the GPU. It is later, so that short launches come QUANTUM_NS at a time,
 * or for half of what may be saved: each change to another slice leaves the GPU idle until a thread wakes. */
static uint64_t waiting_since(int gpu, const struct kerf_gpu_orders *o, const moment_t *m) {
    const uint64_t turn_ns = sooner(QUANTUM_NS, (uint64_t)own_bucket[gpu].cap_ns / 2);
    const uint64_t less_ns = m->estimate_ns < turn_ns ? turn_ns - m->estimate_ns : 0;
    return owed_since(gpu, o, m->now_ns) + less_ns * MILLI / o->compute_milli;
}

static int is_long(const struct kerf_gpu_orders *o, uint64_t estimate_ns) {
    return LONG_PART * estimate_ns > o->window_ns;
}

static int has_turn(int gpu) { return signals && gpu < (int)signals->gpu_count; }

/* Whether launches take turns now, outside the timetable. Announces that they are long. */
static int takes_turns(int gpu, const struct kerf_gpu_orders *o, const moment_t *m) {
    if (!has_turn(gpu)) return 0;
    if (is_long(o, m->estimate_ns))
        STORE(signals->turn[gpu].long_until_ns, m->now_ns + m->estimate_ns + LONG_PERIODS * o->period_ns);
    return m->peers_long_until_ns > m->now_ns || LOAD(signals->turn[gpu].long_until_ns) > m->now_ns;
}

/* Returns 0 if it is the slice's turn; otherwise when to look again. */
static uint64_t turn_wait(int gpu, const struct kerf_gpu_orders *o, const moment_t *m, uint64_t own_ns) {
    if (tokens_of(gpu) >= own_bucket[gpu].cap_ns) return 0; /* the peers have had all the time that is theirs */
    if (m->peers_due_ns > m->now_ns) return m->peers_due_ns;
    if (own_ns) /* it has the GPU */
        return m->peers_owed_since_ns < owed_since(gpu, o, m->now_ns)
            && m->peers_owed_since_ns < m->now_ns ? m->due_ns : 0;
    return m->peers_owed_since_ns < waiting_since(gpu, o, m) && m->peers_owed_since_ns < m->now_ns
        ? m->now_ns + POLL_NS / 5 : 0;
}

/* Announces whether a launch waits for its turn, and the slice's start tag. */
static void announce_turn(int gpu, const struct kerf_gpu_orders *o, const moment_t *m, uint64_t waits_until_ns) {
    STORE(signals->turn[gpu].owed_since_ns, waiting_since(gpu, o, m));
    STORE(signals->turn[gpu].waiting_until_ns, waits_until_ns ? waits_until_ns + 2 * POLL_NS : 0);
}

static int lends[KERF_MAX_GPUS]; /* whether the last verdict was GO in time that is lent */
int gate_lends(int gpu) { return lends[gpu]; }

/* Returns the lent GPU time that may begin. */
static int64_t lent_tokens(int gpu, const struct kerf_gpu_orders *o, uint64_t now_ns) {
    struct kerf_gpu_counters *c = &counters->gpu[gpu];
    uint64_t last = LOAD(c->lent_refilled_ns);
    int64_t tokens;
    if (now_ns >= last + REFILL_NS && __atomic_compare_exchange_n(&c->lent_refilled_ns, &last, now_ns, 0,
        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        tokens = ADD(c->lent_tokens_ns, last ? earned(last, now_ns, o->lent_milli) : LENT_CAP_NS);
        if (tokens > LENT_CAP_NS) ADD(c->lent_tokens_ns, LENT_CAP_NS - tokens);
    }
    return LOAD(c->lent_tokens_ns);
}

/* Whether the launch may begin in time that is lent. Otherwise `until_ns` is when to look again at the latest. */
static int may_borrow(int gpu, const struct kerf_gpu_orders *o, const moment_t *m, uint64_t own_ns,
    uint64_t *until_ns) {
    const uint64_t free_ns = m->peers_busy_until_ns + orders->idle_for_ns, in_flight_ns = own_ns + m->others_ns;
    const uint64_t left_ns = m->estimate_ns < LENT_BOUND_NS ? LENT_BOUND_NS - m->estimate_ns : 0;
    const int64_t tokens = lent_tokens(gpu, o, m->now_ns);
    if (m->peers_busy_until_ns && free_ns > m->now_ns) return *until_ns = sooner(*until_ns, free_ns), 0;
    if (tokens <= 0) {
        const uint64_t missing_ns = (uint64_t)-tokens * MILLI / o->lent_milli;
        return *until_ns = sooner(*until_ns, m->now_ns + REFILL_NS + missing_ns), 0;
    }
    if (in_flight_ns > left_ns)
        return *until_ns = sooner(*until_ns, own_ns > left_ns ? m->due_ns - left_ns : m->now_ns + POLL_NS / 10), 0;
    return !would_delay_peer(gpu, m, in_flight_ns, 1);
}

int watches_peers(int gpu, const moment_t *m) {
    const struct kerf_gpu_orders read = read_orders(gpu), *o = &read;
    const uint64_t begin_ns = m->due_ns > m->now_ns ? m->due_ns : m->now_ns;
    uint64_t start, reach;
    if (orders->tier == KERF_TIER_LOW) return 1;
    if (!limited(o) || !window_of(o)) return 0;
    if (o->lent_milli) return 1;
    if (is_long(o, m->estimate_ns) || peers_take_turns(gpu, m->now_ns)
        || (has_turn(gpu) && LOAD(signals->turn[gpu].long_until_ns) > m->now_ns)) return 1;
    start = m->now_ns / o->period_ns * o->period_ns + o->window_start_ns;
    reach = reach_in_bounds(o, m->estimate_ns, LOAD(counters->gpu[gpu].reach_ns));
    return begin_ns == m->now_ns || m->now_ns < start || begin_ns + m->estimate_ns / 2 > start + reach;
}

/* A kernel of a collective spins until those of the process's other GPUs have come, and is charged for it. If the
 * launch of those waits for its share meanwhile, its GPU is the next one that spins, for as long or longer, and so on. So
 * a launch may follow a kernel that spins on another GPU, into a debt that is repaid; whoever comes first pays for the
 * wait, and so the debts of the GPUs stay near each other. */
int gate_may_follow(int gpu) { return limited(&orders->gpu[gpu]) && tokens_of(gpu) > -FOLLOW_DEBT_NS; }

/* Whether a slice that has no timetable, and whose tokens were spent, saves some before it goes on. With each as it comes
 * every launch would wait by itself, and its measurement would cost as much as a short kernel. */
static int saves[KERF_MAX_GPUS];

/* Whether launches wait for room in flight. They go on when there is room for several: one by one each would be a
 * batch, and its events would cost as much as a short kernel. */
static int waits_for_room[KERF_MAX_GPUS];

static enum verdict judge(int gpu, const struct kerf_gpu_orders *o, const moment_t *m, int turns, uint64_t *until_ns) {
    const int low = orders->tier == KERF_TIER_LOW;
    const uint64_t bound_ns = o->in_flight_us ? (uint64_t)o->in_flight_us * 1000 : DEFAULT_BOUND_NS;
    const uint64_t own_ns = m->due_ns > m->now_ns ? m->due_ns - m->now_ns : 0;
    const uint64_t spare_ns = low ? 0 : bound_ns / ROOM_PART;
    const uint64_t most_ns = bound_ns - (waits_for_room[gpu] ? spare_ns : 0);
    int64_t missing_ns;
    uint64_t wait_ns = 0, milli = low ? orders->low_floor_milli : o->compute_milli;
    *until_ns = m->now_ns + POLL_NS;
    if (is_held_by_agent(gpu, m->now_ns)) return HELD_BY_AGENT;
    if (!low && !limited(o) && !o->in_flight_us) return GO;
    /* A launch that follows shortly before the end of what it waits for leaves no gap: threads wake late. */
    if (own_ns + m->others_ns && (!m->estimate_ns || (own_ns + m->others_ns > (low ? 0 : EARLY_NS)
        && own_ns + m->others_ns + m->estimate_ns > most_ns))) {
        waits_for_room[gpu] = 1;
        if (own_ns) {
            const uint64_t room_ns = bound_ns - spare_ns > m->estimate_ns ? bound_ns - spare_ns - m->estimate_ns : 0;
            const uint64_t left_ns = larger(room_ns, low ? 0 : EARLY_NS);
            *until_ns = own_ns > left_ns && m->estimate_ns ? m->due_ns - left_ns : m->due_ns;
            return WAIT_WORK;
        }
        *until_ns = m->now_ns + (m->others_ns < POLL_NS / 10 ? m->others_ns : POLL_NS / 10) + 1;
        return WAIT_OTHERS;
    }
    waits_for_room[gpu] = 0;
    if (low) {
        const uint64_t free_ns = m->peers_busy_until_ns + orders->idle_for_ns;
        const int idle = !m->peers_busy_until_ns || free_ns <= m->now_ns;
        if (tokens_of(gpu) > 0 || (idle && !would_delay_peer(gpu, m, own_ns + m->others_ns, 3)))
            return began_in_pause_ns[gpu] = m->now_ns, GO;
        if (!idle) *until_ns = sooner(*until_ns, free_ns);
        return WAIT_TIME;
    }
    if (!limited(o)) return GO;
    if (turns) wait_ns = turn_wait(gpu, o, m, own_ns);
    else if (window_of(o)) wait_ns = window_wait(gpu, o, m, own_ns ? m->due_ns : m->now_ns);
    if (tokens_of(gpu) <= 0) saves[gpu] = !window_of(o);
    missing_ns = (!saves[gpu] ? 0 : own_bucket[gpu].cap_ns < 2 * SAVED_NS ? own_bucket[gpu].cap_ns / 2 : SAVED_NS)
        - tokens_of(gpu);
    if (!wait_ns && missing_ns < 0) return saves[gpu] = 0, GO;
    if (!wait_ns) wait_ns = m->now_ns + REFILL_NS + (uint64_t)missing_ns * MILLI / milli;
    if (o->lent_milli && window_of(o) && may_borrow(gpu, o, m, own_ns, &wait_ns))
        return began_in_pause_ns[gpu] = m->now_ns, lends[gpu] = 1, GO;
    *until_ns = sooner(m->now_ns + 10 * POLL_NS, wait_ns); /* the orders may change meanwhile */
    return WAIT_TIME;
}

enum verdict gate(int gpu, const moment_t *m, uint64_t *until_ns) {
    const struct kerf_gpu_orders read = read_orders(gpu), *o = &read;
    const int low = orders->tier == KERF_TIER_LOW;
    enum verdict verdict;
    int turns;
    lends[gpu] = 0;
    if (low || limited(o)) refill(gpu, o, low ? orders->low_floor_milli : o->compute_milli, m->estimate_ns, m->now_ns);
    turns = !low && limited(o) && window_of(o) && takes_turns(gpu, o, m);
    verdict = judge(gpu, o, m, turns, until_ns);
    if (turns) announce_turn(gpu, o, m, verdict == WAIT_TIME || verdict == WAIT_WORK ? *until_ns : 0);
    return verdict;
}

/* Changes both token buckets: the container's and the process's own; or that of lent time. */
static void pay(int gpu, int64_t shared_ns, int64_t own_ns, int lent) {
    if (orders->tier != KERF_TIER_LOW && !limited(&orders->gpu[gpu])) return;
    if (lent) {
        ADD(counters->gpu[gpu].lent_tokens_ns, shared_ns);
        return;
    }
    ADD(counters->gpu[gpu].tokens_ns, shared_ns);
    own_bucket[gpu].tokens_ns += own_ns;
}

void gate_charge(int gpu, uint64_t ns, int lent) {
    ADD(counters->gpu[gpu].used_ns, ns);
    pay(gpu, -(int64_t)ns, -(int64_t)ns, lent);
}

/* Limits the debt of the low tier, because time in the gaps must not count forever. */
static void forgive(int gpu) {
    const int64_t tokens = LOAD(counters->gpu[gpu].tokens_ns);
    if (orders->tier != KERF_TIER_LOW) return;
    if (tokens < -LOW_DEBT_NS) ADD(counters->gpu[gpu].tokens_ns, -LOW_DEBT_NS - tokens);
    if (own_bucket[gpu].tokens_ns < -LOW_DEBT_NS) own_bucket[gpu].tokens_ns = -LOW_DEBT_NS;
}

void gate_spend(int gpu, uint64_t estimate_ns, uint64_t now_ns, int lent) {
    pay(gpu, -(int64_t)estimate_ns, -(int64_t)estimate_ns, lent);
    ADD(counters->gpu[gpu].granted_ns, estimate_ns);
    ADD(counters->gpu[gpu].launches, 1);
    self()->heard_ns = now_ns;
}

/* Returns the part of [begin, end) outside the last accounted stretch, so that work of several streams and processes
 * counts once. */
static uint64_t fresh_part(uint64_t *busy_from_ns, uint64_t *busy_until_ns, uint64_t begin_ns, uint64_t end_ns) {
    const uint64_t from = LOAD(*busy_from_ns), until = LOAD(*busy_until_ns);
    uint64_t part = end_ns - begin_ns;
    if (begin_ns > until || end_ns < from) {
        if (end_ns > until) STORE(*busy_from_ns, begin_ns), STORE(*busy_until_ns, end_ns);
        return part;
    }
    part = (begin_ns < from ? from - begin_ns : 0) + (end_ns > until ? end_ns - until : 0);
    if (begin_ns < from) STORE(*busy_from_ns, begin_ns);
    if (end_ns > until) STORE(*busy_until_ns, end_ns);
    return part;
}

/* Replaces an estimate that was charged: the container used `used_ns`, this process `own_ns`. */
static void correct(int gpu, uint64_t estimate_ns, uint64_t used_ns, uint64_t own_ns, int lent) {
    ADD(counters->gpu[gpu].used_ns, used_ns);
    pay(gpu, (int64_t)estimate_ns - (int64_t)used_ns, (int64_t)estimate_ns - (int64_t)own_ns, lent);
    forgive(gpu);
}

void gate_correct(int gpu, uint64_t estimate_ns, uint64_t used_ns) { correct(gpu, estimate_ns, used_ns, used_ns, 0); }

uint64_t gate_settle(int gpu, uint64_t estimate_ns, uint64_t begin_ns, uint64_t end_ns, int lent) {
    struct kerf_gpu_counters *c = &counters->gpu[gpu];
    const struct kerf_gpu_orders read = read_orders(gpu), *o = &read;
    const uint64_t used = fresh_part(&c->busy_from_ns, &c->busy_until_ns, begin_ns, end_ns);
    const uint64_t own = fresh_part(&own_bucket[gpu].busy_from_ns, &own_bucket[gpu].busy_until_ns, begin_ns, end_ns);
    correct(gpu, estimate_ns, used, own, lent);
    if (limited(o) && orders->tier != KERF_TIER_LOW && window_of(o) && !lent) {
        const uint64_t window_end = begin_ns / o->period_ns * o->period_ns + o->window_start_ns + o->window_ns;
        if (begin_ns >= window_end || begin_ns + o->window_ns < window_end)
            own_bucket[gpu].owed_ns -= own < own_bucket[gpu].owed_ns ? own : own_bucket[gpu].owed_ns;
        if (end_ns > window_end && begin_ns < window_end) ADD(c->overran_ns, end_ns - window_end);
    }
    return own;
}
