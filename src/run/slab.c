/* slab.c - memory for a whole run, straight from the system: it can grow without being
 * copied, and comes zeroed.
 *
 * Stands alone because it is what another device replaces. */
#include "run/slab.h"

#include "base/memory.h"
#include "core/device.h"

#include <errno.h>
#include <sys/mman.h>

static bool slab_lacks(const char *what, int64_t bytes, int64_t have)
{
    fail("%s: the plan needs %lld byte(s), this machine can give %lld; use recompute "
         "or "
         "offload, or smaller microbatches", what, (long long)bytes, (long long)have);
    return fail_kind(FAULT_MEMORY);
}

bool slab_make(const char *what, int64_t bytes, struct slab *out)
{
    *out = (struct slab){0};
    if (bytes == 0)
        return true;
    int64_t have = device_memory_free();
    if (bytes > have)
        return slab_lacks(what, bytes, have);
    void *at = memory_map((size_t)bytes);
    if (!at)
        return slab_lacks(what, bytes, have);
    *out = (struct slab){at, bytes};
    return true;
}

bool slab_grow(const char *what, int64_t bytes, struct slab *s)
{
    if (s->bytes == 0)
        return slab_make(what, bytes, s);
    if (bytes <= s->bytes)
        return true;
    int64_t have = device_memory_free();
    if (bytes - s->bytes > have)
        return slab_lacks(what, bytes, s->bytes + have);
    void *at = mremap(s->at, (size_t)s->bytes, (size_t)bytes, MREMAP_MAYMOVE);
    if (at == MAP_FAILED)
        return slab_lacks(what, bytes, s->bytes + have);
    *s = (struct slab){at, bytes};
    return true;
}

void slab_free(struct slab *s)
{
    if (s->bytes > 0)
        munmap(s->at, (size_t)s->bytes);
    *s = (struct slab){0};
}
