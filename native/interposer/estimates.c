/* Estimates of how long a function runs on the GPU: a small table; a new key replaces the old one at the same place.
 *
 * A launch of unknown length waits until nothing is in flight, and peers wait for it as for a long one. A program that
 * loads code while it runs (a just-in-time compiler) has many of them. So a function that was never measured counts as
 * long as the first launches of others, once ENOUGH of them have been short. */
#include "kerf.h"

enum { PLACES = 1024, ENOUGH = 8, SHORT_NS = 1000000 };
static struct { uint64_t key, ns; } table[PLACES];
static uint64_t first_ns, firsts; /* the longest of the recent first launches, and how many were short one after another */

static uint64_t *place(uint64_t key, int make) {
    const uint64_t i = key * 0x9E3779B97F4A7C15u >> 54;
    if (table[i].key != key && !make) return NULL;
    if (table[i].key != key) table[i].ns = 0;
    table[i].key = key;
    return &table[i].ns;
}

static uint64_t measured(uint64_t key) {
    const uint64_t *ns = place(key, 0);
    return ns ? *ns : 0;
}
uint64_t estimate(uint64_t key) {
    const uint64_t ns = measured(key);
    return ns || firsts < ENOUGH ? ns : first_ns;
}
int is_unmeasured(uint64_t key) { return !measured(key); }

static void learn_first(uint64_t ns) {
    firsts = ns > SHORT_NS ? 0 : firsts + 1;
    first_ns -= first_ns / 16;
    if (ns > first_ns) first_ns = ns;
}

/* Mixes a measurement into an estimate. A measurement may include another container's time slice, so a shorter time
 * counts at once and a longer time slowly. */
static uint64_t mixed(uint64_t before, uint64_t seen) {
    if (seen < 1000) seen = 1000;
    if (!before) return seen;
    return seen < before ? (before + seen) / 2 : before + (seen - before + 7) / 8;
}

void learn(const uint64_t *keys, int count, uint64_t estimated_ns, uint64_t used_ns) {
    int same = 1;
    for (int i = 0; i < count; i++)
        if (!measured(keys[i])) learn_first(used_ns / (uint64_t)count);
    for (int i = 1; i < count; i++) same &= keys[i] == keys[0];
    if (same) {
        uint64_t *ns = place(keys[0], 1);
        *ns = mixed(*ns, used_ns / (uint64_t)count);
        return;
    }
    for (int i = 0; i < count; i++) { /* each in proportion, within a factor of 2 */
        uint64_t *ns = place(keys[i], 1), seen = estimated_ns
            ? (uint64_t)((double)*ns * (double)used_ns / (double)estimated_ns) : 0;
        if (!*ns) seen = used_ns / (uint64_t)count;
        if (*ns && seen > *ns * 2) seen = *ns * 2;
        *ns = mixed(*ns, seen);
    }
}
