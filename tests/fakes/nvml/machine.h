/* A libnvidia-ml.so.1 whose GPUs are described in a text file, for tests of code that uses the real pynvml.
 *
 * The declarations are Kerf's own, after NVML's documented binary interface; no NVIDIA header is used. The file is
 * read again at every call, so a test changes the machine by replacing the file. Its path is in
 * KERF_FAKE_NVML_STATE. Each line holds one fact. Only the line `gpu` is required; the defaults are those of a
 * healthy machine:
 *
 *   driver 580.95.05
 *   cuda 13000
 *   init 9                               nvmlInit returns this error
 *   hang                                 every call waits until this line is gone
 *   gpu 0 UUID NAME MEMORY_MIB PCI NUMA CC_MAJOR CC_MINOR MIG ERROR     (in NAME, _ means a space; ERROR 0 means none)
 *   minor 0 3                            device node /dev/nvidia3; default: the index
 *   cpus 0 ff00                          the CPUs near it, as a mask of up to 64
 *   c2c 0 1                              connected to its CPU by NVLink-C2C
 *   fabric 0 STATE CLIQUE CLUSTER        NVSwitch fabric: NVML's state (3 is up), and the cluster as 32 hex digits
 *   nvlink 0 3 gpu PCI                   link 3 of GPU 0 is active and connects to that GPU
 *   nvlink 0 4 switch                    ... or to a switch
 *   ancestor 0 1 30                      NVML's level of the common ancestor
 *   p2p 0 1 0                            NVML's status, 0 is OK
 *   mig 0 GI START PROFILE MEMORY_MIB UUID  a MIG instance with one compute instance; mig 0 9 2 1g.10gb 9984 MIG-a
 *   profile 0 INDEX ID NAME SLICES MEMORY_MIB SIZE STARTS  a profile of GPU instances, for calls that create them: SIZE
 *                                        memory slices, from those slices on that are set in the hex mask STARTS
 *   deny 0 ci                            compute instances cannot be created (or gi: GPU instances)
 *   process 0 4711 2048 [GI]             a compute process, its MiB, and its MIG instance
 *   graphics 0 4711 2048                 a process of a graphics API, and its MiB; it may be a compute process, too
 *   sm 0 4711 35 [20]                    ... that uses 35 % of the SMs, and of the memory's time 20 %
 *   busy 0 90                            the GPU's use in percent
 *   ecc 0 VOLATILE AGGREGATE             uncorrectable errors; -1 -1: no ECC
 *   rows 0 PENDING FAILED                row remapping; -1 -1: not supported
 *   pcie 0 WIDTH MAX_WIDTH GENERATION MAX_GENERATION
 *   clocks 0 40                          clock throttle reasons, in hex
 *   recovery 0 1                         the driver's recovery action; -1: not supported by this driver
 *   event 7 0 8 79                       the 7th event: GPU 0, type 8 (XID), number 79. Reported once to each set
 *
 * What calls change is appended to a second file, whose name ends with ".mig": instances that were made and destroyed.
 * With KERF_FAKE_NVML_CAPABILITIES, a folder, the capabilities of instances are registered there as the kernel module
 * registers them in /proc/driver/nvidia/capabilities.
 */
#ifndef MACHINE_H
#define MACHINE_H
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
    IN_USE = 19, INSUFFICIENT_RESOURCES = 23, UNKNOWN = 999 };
enum { MAX_GPUS = 32, MAX_LINKS = 36, MAX_PROCESSES = 64, MAX_MIG = 8, MAX_PROFILES = 18, MAX_EVENTS = 1024 };
enum { NO_INSTANCE = 0xFFFFFFFFu };

typedef void *handle_t;
typedef struct { unsigned pid, gpu_instance; int mib, sm, memory; } running_t;
typedef struct { unsigned gpu_instance, start, size; int memory_mib, compute; char profile[32], uuid[96]; } mig_t;
typedef struct { unsigned id, slices, size, starts; int memory_mib; char name[32]; } profile_t;
typedef struct { unsigned number; int gpu; unsigned long long type, data; } event_t;
typedef struct {
    char uuid[96], name[96], pci[32];
    int memory_mib, numa, major, minor, mig, error, present;
    int device_minor, c2c, fabric, busy, ecc_volatile, ecc_aggregate, rows_pending, rows_failed, recovery;
    int width, max_width, generation, max_generation;
    unsigned clique;
    unsigned char cluster[16];
    unsigned long long cpus, clocks;
    char link[MAX_LINKS][32]; /* "", "switch", or a bus id */
    int processes, graphics, migs;
    running_t process[MAX_PROCESSES], drawing[MAX_PROCESSES];
    mig_t instance[MAX_MIG];
    profile_t profile[MAX_PROFILES]; /* by NVML's number; without a name: not on this GPU */
    int deny_ci, deny_gi;
} gpu_t;
typedef struct {
    char driver[80];
    int cuda, init_error, count, events;
    gpu_t gpu[MAX_GPUS];
    int ancestor[MAX_GPUS][MAX_GPUS], p2p[MAX_GPUS][MAX_GPUS];
    event_t event[MAX_EVENTS];
} machine_t;

/* Returns the machine as the file describes it now; waits while the file contains "hang". Valid in the calling
 * thread until its next call. */
int look(machine_t **m);
/* Returns the GPU of a handle, or the error that the file gives it. A MIG instance's handle is (GPU + 1) * 1000 +
 * the id of its GPU instance + 1; its GPU instance and its compute instance have the same one. */
int find(machine_t **m, handle_t handle, gpu_t **gpu);
int find_instance(machine_t **m, handle_t handle, gpu_t **gpu, mig_t **instance);
handle_t gpu_handle(long index);
handle_t instance_handle(long index, long gpu_instance);
/* Appends a line to the second file. */
int change(const char *line);
void text(char *to, unsigned length, const char *from);

#endif
