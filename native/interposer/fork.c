/* Fork handlers: a fork waits until no thread is in the middle of a change that the child would find half done and
 * locked. */
#include "kerf.h"

static pthread_mutex_t *const all[] = {&attach_guard, &contexts_guard, &pools_guard, &table_guard, &account_guard,
    &finding_guard};
enum { LOCKS = sizeof all / sizeof *all };

/* A driver that forks while it is loaded does so in the thread that holds finding_guard. */
static int held_by_us(int i) { return all[i] == &finding_guard && is_finding(); }

static void before(void) {
    for (int i = 0; i < LOCKS; i++)
        if (!held_by_us(i)) pthread_mutex_lock(all[i]);
}
static void in_parent(void) {
    for (int i = LOCKS; i-- > 0;)
        if (!held_by_us(i)) pthread_mutex_unlock(all[i]);
}
void locks_reinit(void) {
    for (int i = 0; i < LOCKS; i++)
        if (!held_by_us(i)) pthread_mutex_init(all[i], NULL);
}
static void in_child(void) {
    locks_reinit();
    control_block_forked();
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(before, in_parent, in_child); }
