/* A stand-in for NVIDIA's libnvidia-ml.so.1: the functions encamp calls, answering from a shared file.
 *
 * The file is named by FAKE_NVML_STATE and laid out as `struct state`; tests/fakes/nvml.py declares the same
 * layout and writes to it while the library is in use, so that a test changes a running "GPU".
 * (The name does not begin with ENCAMP_, because the daemon passes on none of those.)
 * Built with -DWITHOUT_MEMORY_V2 it is an old driver: the newest symbols are not there at all.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10 };

/* Bits of `unsupported`. */
enum { UTILIZATION = 1, MEMORY = 2, POWER = 4, POWER_LIMIT = 8, TEMPERATURE = 16, EVENTS = 32 };

enum { XID_CRITICAL_ERROR = 8 };

#define MAX_GPUS 64
#define MAX_PROCESSES 8
#define MAX_XIDS 16

struct gpu {
    char uuid[96];
    char name[96];
    uint64_t memory_total;
    uint64_t memory_reserved; /* the driver's own share; v1 counts it as used, v2 does not */
    uint64_t memory_used;
    uint32_t utilization;
    uint32_t memory_utilization;
    uint32_t power_milliwatts;
    uint32_t power_limit_milliwatts;
    uint32_t temperature;
    uint32_t unsupported;
    int32_t result; /* every call about this GPU returns it, when it is not SUCCESS */
    uint32_t processes;
    uint32_t pids[MAX_PROCESSES];
    uint64_t process_memory[MAX_PROCESSES];
    uint8_t links[MAX_GPUS]; /* NVLinks to each other GPU */
    uint8_t levels[MAX_GPUS]; /* what it has in common with each other GPU, as NVML counts that */
    uint32_t xids; /* how many there were, the newest MAX_XIDS of them in `xid`, each at its number's place */
    uint32_t xid[MAX_XIDS];
};

struct state {
    char magic[8];
    uint32_t gpu_count;
    int32_t init_result;
    char driver[80];
    uint64_t hang_until; /* CLOCK_MONOTONIC in nanoseconds: calls block until then */
    uint64_t calls;
    uint32_t latency_microseconds;
    uint32_t crash;
    uint32_t noise; /* calls print a line to standard output, as careless libraries do */
    int32_t cuda; /* 12080 is 12.8; 0 is a driver that does not say */
    uint32_t nvswitch; /* the NVLinks end at a switch, whose address they tell */
    uint32_t reserved;
    struct gpu gpus[MAX_GPUS];
};

static volatile struct state *state;
static int initialized;

static uint64_t monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void enter(void)
{
    state->calls++;
    if (state->crash)
        raise(SIGSEGV);
    if (state->noise) {
        puts("NVRM: careless words on standard output");
        fflush(stdout);
    }
    if (state->latency_microseconds)
        usleep(state->latency_microseconds);
    while (monotonic() < state->hang_until)
        usleep(2000);
}

static int find(void *device, volatile struct gpu **gpu, uint32_t feature)
{
    if (!initialized)
        return UNINITIALIZED;
    enter();
    uintptr_t number = (uintptr_t)device;
    if (number == 0 || number > state->gpu_count)
        return INVALID_ARGUMENT;
    *gpu = &state->gpus[number - 1];
    if ((*gpu)->result != SUCCESS)
        return (*gpu)->result;
    return (*gpu)->unsupported & feature ? NOT_SUPPORTED : SUCCESS;
}

static int text(char *target, unsigned int size, const volatile char *source)
{
    size_t length = strlen((const char *)source) + 1;
    if (length > size)
        return INSUFFICIENT_SIZE;
    memcpy(target, (const char *)source, length);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    if (state == NULL) {
        const char *path = getenv("FAKE_NVML_STATE");
        int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
        if (file < 0)
            return DRIVER_NOT_LOADED;
        void *mapped = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (mapped == MAP_FAILED || memcmp(mapped, "FAKENVML", 8) != 0)
            return DRIVER_NOT_LOADED;
        state = mapped;
    }
    enter();
    initialized = state->init_result == SUCCESS;
    return state->init_result;
}

int nvmlShutdown(void)
{
    initialized = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int result)
{
    static char message[64];
    snprintf(message, sizeof message, "fake NVML error %d", result);
    return message;
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    if (!initialized)
        return UNINITIALIZED;
    enter();
    return text(version, length, state->driver);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!initialized)
        return UNINITIALIZED;
    enter();
    *version = state->cuda;
    return state->cuda ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (!initialized)
        return UNINITIALIZED;
    enter();
    *count = state->gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    volatile struct gpu *gpu;
    void *handle = (void *)(uintptr_t)(index + 1);
    int result = find(handle, &gpu, 0);
    if (result == SUCCESS)
        *device = handle;
    return result;
}

int nvmlDeviceGetName(void *device, char *name, unsigned int length)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, 0);
    return result == SUCCESS ? text(name, length, gpu->name) : result;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, 0);
    return result == SUCCESS ? text(uuid, length, gpu->uuid) : result;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned int *rates)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, UTILIZATION);
    if (result == SUCCESS) {
        rates[0] = gpu->utilization;
        rates[1] = gpu->memory_utilization;
    }
    return result;
}

struct memory_v1 { unsigned long long total, free, used; };

int nvmlDeviceGetMemoryInfo(void *device, struct memory_v1 *memory)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, MEMORY);
    if (result == SUCCESS) {
        memory->total = gpu->memory_total;
        memory->used = gpu->memory_used + gpu->memory_reserved;
        memory->free = memory->total - memory->used;
    }
    return result;
}

#ifndef WITHOUT_MEMORY_V2
struct memory_v2 { unsigned int version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
    volatile struct gpu *gpu;
    if (memory->version != (sizeof(struct memory_v2) | 2u << 24))
        return INVALID_ARGUMENT;
    int result = find(device, &gpu, MEMORY);
    if (result == SUCCESS) {
        memory->total = gpu->memory_total;
        memory->reserved = gpu->memory_reserved;
        memory->used = gpu->memory_used;
        memory->free = memory->total - memory->used - memory->reserved;
    }
    return result;
}
#endif

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, POWER);
    if (result == SUCCESS)
        *milliwatts = gpu->power_milliwatts;
    return result;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *milliwatts)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, POWER_LIMIT);
    if (result == SUCCESS)
        *milliwatts = gpu->power_limit_milliwatts;
    return result;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *celsius)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, TEMPERATURE);
    if (result == SUCCESS && sensor != 0)
        return INVALID_ARGUMENT;
    if (result == SUCCESS)
        *celsius = gpu->temperature;
    return result;
}

/* Of each GPU how many XIDs one set has told of; there is never more than one set. What was before is lost. */
static uint32_t told[MAX_GPUS];
static uint8_t registered[MAX_GPUS];

int nvmlEventSetCreate(void **set)
{
    if (!initialized)
        return UNINITIALIZED;
    enter();
    memset(registered, 0, sizeof registered);
    *set = registered;
    return SUCCESS;
}

int nvmlEventSetFree(void *set)
{
    (void)set;
    memset(registered, 0, sizeof registered);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    (void)set;
    volatile struct gpu *gpu;
    int result = find(device, &gpu, EVENTS);
    if (result == SUCCESS && types != XID_CRITICAL_ERROR)
        return INVALID_ARGUMENT;
    if (result == SUCCESS && !registered[gpu - state->gpus]) {
        registered[gpu - state->gpus] = 1;
        told[gpu - state->gpus] = gpu->xids;
    }
    return result;
}

#ifndef WITHOUT_MEMORY_V2
struct event { void *device; unsigned long long type, data; unsigned int gpu_instance, compute_instance; };

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned int milliseconds)
{
    (void)set;
    if (!initialized)
        return UNINITIALIZED;
    enter();
    for (uint32_t number = 0; number < state->gpu_count; number++)
        if (registered[number] && told[number] != state->gpus[number].xids) {
            uint32_t xid = state->gpus[number].xid[told[number]++ % MAX_XIDS];
            *event = (struct event){(void *)(uintptr_t)(number + 1), XID_CRITICAL_ERROR, xid, ~0u, ~0u};
            return SUCCESS;
        }
    usleep(milliseconds * 1000);
    return TIMEOUT;
}
#endif

struct process { unsigned int pid; unsigned long long memory; unsigned int gpu_instance, compute_instance; };

#ifdef WITHOUT_MEMORY_V2
#define nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses_v2
#endif
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, struct process *processes)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, 0);
    if (result != SUCCESS)
        return result;
    unsigned int room = *count;
    *count = gpu->processes;
    if (room < gpu->processes)
        return INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < gpu->processes; i++)
        processes[i] = (struct process){gpu->pids[i], gpu->process_memory[i], ~0u, ~0u};
    return SUCCESS;
}

/* The peer that NVLink number `link` of `gpu` leads to, or -1. */
static int peer_of(volatile struct gpu *gpu, unsigned int link)
{
    for (unsigned int peer = 0; peer < state->gpu_count; peer++) {
        if (link < gpu->links[peer])
            return (int)peer;
        link -= gpu->links[peer];
    }
    return -1;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned int link, unsigned int *active)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, 0);
    if (result != SUCCESS)
        return result;
    *active = 1;
    return peer_of(gpu, link) < 0 ? (link ? INVALID_ARGUMENT : NOT_SUPPORTED) : SUCCESS;
}

struct pci { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char bus_id[32]; };

static int bus(struct pci *pci, int number)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned int)number;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", number);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, 0);
    return result == SUCCESS ? bus(pci, (int)(gpu - state->gpus)) : result;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned int link, struct pci *pci)
{
    volatile struct gpu *gpu;
    int result = find(device, &gpu, 0);
    if (result != SUCCESS)
        return result;
    int peer = peer_of(gpu, link);
    return peer < 0 ? INVALID_ARGUMENT : bus(pci, state->nvswitch ? 255 : peer);
}

int nvmlDeviceGetTopologyCommonAncestor(void *device, void *other, int *level)
{
    volatile struct gpu *one, *two;
    int result = find(device, &one, 0);
    if (result == SUCCESS)
        result = find(other, &two, 0);
    if (result == SUCCESS)
        *level = one->levels[two - state->gpus];
    return result;
}

int nvmlDeviceGetP2PStatus(void *device, void *other, int index, int *status)
{
    volatile struct gpu *one, *two;
    int result = find(device, &one, 0);
    if (result == SUCCESS)
        result = find(other, &two, 0);
    if (result == SUCCESS) /* by NVLink only, as on consumer cards; 1: the chipset does not do it */
        *status = (index == 0 || index == 2) && one->links[two - state->gpus] ? 0 : 1;
    return result;
}
