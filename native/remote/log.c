/* At most 100 lines a minute, each at most 512 bytes; then how many were left out. */
#define _GNU_SOURCE
#include "log.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { MOST = 100, PERIOD_S = 60, LINE = 512 };

void log_line(const char *format, ...) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static int64_t begun_s = -PERIOD_S;
    static long lines, left_out;
    char line[LINE];
    struct timespec now;
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&mutex);
    if (now.tv_sec - begun_s >= PERIOD_S) {
        if (left_out) fprintf(stderr, "%ld lines were left out\n", left_out);
        begun_s = now.tv_sec, lines = left_out = 0;
    }
    if (lines++ < MOST) fprintf(stderr, "%s\n", line);
    else left_out++;
    pthread_mutex_unlock(&mutex);
}
