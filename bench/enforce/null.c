/* A driver whose calls return at once, so that the time of a launch is the interposer's cost. */
#include <stdint.h>
#include <string.h>

static int thing;
int cuInit(unsigned flags) { return (int)flags; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &thing, device; }
int cuCtxSetCurrent(void *context) { return !context; }
int cuCtxGetCurrent(void **context) { return *context = &thing, 0; }
int cuCtxGetDevice(int *device) { return *device = 0; }
int cuCtxSynchronize(void) { return 0; }
int cuDeviceGetUuid_v2(void *uuid, int device) {
    return memset(uuid, 0, 16), ((char *)uuid)[15] = (char)(device + 1), 0;
}
int cuDeviceGetUuid(void *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuModuleLoadData(void **module, const void *image) { return *module = &thing, !image; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    return *function = &thing, !module || !name;
}
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s, void *t,
    void **p, void **x) {
    (void)f, (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)s, (void)t, (void)p, (void)x;
    return 0;
}

/* What a timed launch asks for beside. */
int cuEventCreate(void **e, unsigned f) {
    static char many[1 << 16];
    static int n;
    return (void)f, *e = &many[n++ & 0xffff], 0;
}
int cuEventRecord(void *e, void *s) { (void)e, (void)s; return 0; }
int cuEventQuery(void *e) { (void)e; return 0; }
int cuEventElapsedTime(float *ms, void *a, void *b) { (void)a, (void)b; return *ms = 0, 0; }
int cuStreamIsCapturing(void *s, int *c) { (void)s; return *c = 0; }
int cuThreadExchangeStreamCaptureMode(int *m) { (void)m; return 0; }
int cuStreamGetCtx(void *s, void **c) { (void)s; return *c = &thing, 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { (void)a, (void)d; return *v = 1, 0; }
