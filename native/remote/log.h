/* Lines for the node's log: a bounded number of them, because strangers can cause them. */
#ifndef LOG_H
#define LOG_H
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2))); /* without its end */
#endif
