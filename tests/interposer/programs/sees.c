/* sees: prints the count of devices; for each its number, and the last byte of its UUID; then what
 * cuDevicePrimaryCtxRetain of each of four numbers returns; then what cuDeviceGetByPCIBusId of each of four GPUs returns. */
#include "api.h"

int main(void) {
    int count;
    CUdevice hidden;
    NEED(CALL(cuInit, , 2000)(0));
    NEED(CALL(cuDeviceGetCount, , 2000)(&count));
    printf("%d", count);
    for (int ordinal = 0; ordinal < count; ordinal++) {
        unsigned char uuid[16];
        CUdevice device;
        NEED(CALL(cuDeviceGet, , 2000)(&device, ordinal));
        NEED(CALL(cuDeviceGetUuid, _v2, 11040)(uuid, device));
        printf(" %d %d", device, uuid[15]);
    }
    printf(" - %d", CALL(cuDeviceGet, , 2000)(&hidden, count));
    for (CUdevice device = 0; device < 4; device++) {
        CUcontext context;
        const CUresult result = CALL(cuDevicePrimaryCtxRetain, , 7000)(&context, device);
        printf(" %d", result);
        if (!result) NEED(CALL(cuDevicePrimaryCtxRelease, _v2, 11000)(device));
    }
    for (int gpu = 0; gpu < 4; gpu++) {
        char name[32];
        snprintf(name, sizeof name, "00000000:%02x:00.0", gpu + 1);
        printf(" %d", CALL(cuDeviceGetByPCIBusId, , 4010)(&hidden, name));
    }
    puts("");
    return 0;
}
