/* device.c - what this machine has: cores and memory, within its group's limits. */
#include "core/device.h"

#include "base/file.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>

/* The number after `label` in a small file of the kernel's; -1 where there is none
 * (no such file, or "max"). */
static int64_t kernel_number(const char *path, const char *label)
{
    struct arena a = arena_make("kernel_number");
    struct bytes file;
    int64_t value = -1;
    if (file_read(&a, path, 1 << 20, &file)) {
        const char *at = strstr(file.at, label), *end = at;
        if (at)
            value = strtoll(at + strlen(label), (char **)&end, 10);
        if (!at || end == at + strlen(label))
            value = -1;
    }
    arena_free(&a);
    return value;
}

/* What the process's own limit (ulimit -v) leaves beside the threads: each maps a
 * buffer of 128 MiB for matrix products, without which the library waits forever. */
static int64_t addresses_free(void)
{
    struct rlimit limit;
    int64_t used = kernel_number("/proc/self/status", "VmSize:");
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur >= INT64_MAX || used < 0)
        return INT64_MAX;
    int64_t threads = ((int64_t)128 << 20) * (device_cores() + 4);
    return MAX(0, (int64_t)limit.rlim_cur - 1024 * used - threads);
}

int64_t device_memory_free(void)
{
    int64_t kib = kernel_number("/proc/meminfo", "MemAvailable:");
    int64_t machine = MIN(kib < 0 ? INT64_MAX : 1024 * kib, addresses_free());
    int64_t limit = kernel_number("/sys/fs/cgroup/memory.max", "");
    int64_t used = kernel_number("/sys/fs/cgroup/memory.current", "");
    return limit < 0 || used < 0 ? machine : MIN(machine, MAX(0, limit - used));
}

int device_cores(void)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int64_t quota = kernel_number("/sys/fs/cgroup/cpu.max", "");
    int64_t period = kernel_number("/sys/fs/cgroup/cpu.max", " ");
    if (quota > 0 && period > 0)
        cores = (int)MIN(cores, (quota + period - 1) / period);
    return MAX(1, cores);
}
