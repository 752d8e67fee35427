/* lends: takes and frees memory as the lines of its input say, "take N", "free N" (MiB) or "look". After each line it
 * prints what it has, and what cuMemGetInfo says is free and there in all, in MiB. It opens the driver with the first
 * line. An allocation that fails is not tried again. */
#include "api.h"

enum { PIECE_MIB = 4, MOST = 4096 };
#define MIB(bytes) ((unsigned long)((bytes) >> 20))

int main(void) {
    static uint64_t piece[MOST];
    int held = 0, mib;
    char word[16], line[64];
    while (fgets(line, sizeof line, stdin) && sscanf(line, "%15s %d", word, &mib) >= 1) {
        size_t available, total;
        if (!library) {
            int device;
            open_driver();
            NEED(CALL(cuInit, , 2000)(0));
            NEED(CALL(cuDeviceGet, , 2000)(&device, 0)); /* the first that CUDA_VISIBLE_DEVICES shows */
            use_device(device);
        }
        if (!strcmp(word, "take"))
            for (int more = mib / PIECE_MIB; more > 0 && held < MOST; more--) {
                if (CALL(cuMemAlloc, _v2, 3020)(&piece[held], (size_t)PIECE_MIB << 20)) break;
                held++;
            }
        if (!strcmp(word, "free"))
            for (int more = mib / PIECE_MIB; more > 0 && held > 0; more--) NEED(CALL(cuMemFree, _v2, 3020)(piece[--held]));
        NEED(CALL(cuMemGetInfo, _v2, 3020)(&available, &total));
        printf("%d %lu %lu\n", held * PIECE_MIB, MIB(available), MIB(total));
        fflush(stdout);
    }
    return 0;
}
