/* The parts of the server. */
#ifndef SERVER_H
#define SERVER_H
enum { WORKER_CONTROL = 3 }; /* the worker's descriptor over which it gets connections */
int work(const char *driver); /* a worker, until its client ends; the exit status */
#endif
