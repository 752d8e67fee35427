/* Prints the layout of control_block.h, one "struct field offset size" per line. A test compares it with layout.py. */
#include "control_block.h"
#include <stddef.h>
#include <stdio.h>

#define FIELD(type, field) \
    printf(#type " " #field " %zu %zu\n", offsetof(struct type, field), sizeof(((struct type *)0)->field));
#define SIZE(type) printf(#type " - 0 %zu\n", sizeof(struct type));

int main(void) {
    SIZE(kerf_gpu_orders) SIZE(kerf_orders) SIZE(kerf_gpu_counters)
    SIZE(kerf_process) SIZE(kerf_counters) SIZE(kerf_signal)
    FIELD(kerf_gpu_orders, uuid) FIELD(kerf_gpu_orders, memory_limit_bytes) FIELD(kerf_gpu_orders, context_bytes)
    FIELD(kerf_gpu_orders, compute_milli) FIELD(kerf_gpu_orders, in_flight_us) FIELD(kerf_gpu_orders, gate)
    FIELD(kerf_gpu_orders, period_ns) FIELD(kerf_gpu_orders, window_start_ns) FIELD(kerf_gpu_orders, window_ns)
    FIELD(kerf_gpu_orders, private_milli) FIELD(kerf_gpu_orders, surcharge_bytes)
    FIELD(kerf_gpu_orders, shown_bytes) FIELD(kerf_gpu_orders, lent_milli)
    FIELD(kerf_orders, magic) FIELD(kerf_orders, version) FIELD(kerf_orders, size_bytes) FIELD(kerf_orders, gpu_count)
    FIELD(kerf_orders, generation) FIELD(kerf_orders, heartbeat_ns) FIELD(kerf_orders, stale_after_ns)
    FIELD(kerf_orders, tier)
    FIELD(kerf_orders, paused) FIELD(kerf_orders, granularity_bytes) FIELD(kerf_orders, idle_for_ns)
    FIELD(kerf_orders, low_floor_milli) FIELD(kerf_orders, driver_path) FIELD(kerf_orders, peer_count)
    FIELD(kerf_orders, peers_held) FIELD(kerf_orders, peer)
    FIELD(kerf_orders, pool_chunk_bytes) FIELD(kerf_orders, hides_others) FIELD(kerf_orders, moves)
    FIELD(kerf_orders, gpu)
    FIELD(kerf_gpu_counters, account) FIELD(kerf_gpu_counters, peak_bytes) FIELD(kerf_gpu_counters, refused)
    FIELD(kerf_gpu_counters, launches) FIELD(kerf_gpu_counters, used_ns) FIELD(kerf_gpu_counters, granted_ns)
    FIELD(kerf_gpu_counters, waited_ns) FIELD(kerf_gpu_counters, waits) FIELD(kerf_gpu_counters, tokens_ns)
    FIELD(kerf_gpu_counters, refilled_ns) FIELD(kerf_gpu_counters, busy_until_ns) FIELD(kerf_gpu_counters, reach_ns)
    FIELD(kerf_gpu_counters, overran_ns) FIELD(kerf_gpu_counters, untimed) FIELD(kerf_gpu_counters, busy_from_ns)
    FIELD(kerf_gpu_counters, adapted_period) FIELD(kerf_gpu_counters, overdue)
    FIELD(kerf_gpu_counters, lent_tokens_ns) FIELD(kerf_gpu_counters, lent_refilled_ns)
    FIELD(kerf_process, state) FIELD(kerf_process, pid) FIELD(kerf_process, waiting) FIELD(kerf_process, attached_ns)
    FIELD(kerf_process, heard_ns) FIELD(kerf_process, charged_bytes) FIELD(kerf_process, intent_bytes)
    FIELD(kerf_process, in_flight_ns)
    FIELD(kerf_counters, magic) FIELD(kerf_counters, version) FIELD(kerf_counters, size_bytes)
    FIELD(kerf_counters, attaches)
    FIELD(kerf_counters, reclaimed) FIELD(kerf_counters, full) FIELD(kerf_counters, gpu) FIELD(kerf_counters, process)
    FIELD(kerf_signal, magic) FIELD(kerf_signal, version) FIELD(kerf_signal, size_bytes) FIELD(kerf_signal, gpu_count)
    FIELD(kerf_signal, gpu)
    return 0;
}
