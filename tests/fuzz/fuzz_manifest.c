/* fuzz_manifest.c - any text as a training state's manifest: refused, or every element
 * and every byte is there once.  The seal is made here, or no change would pass it. */
#include "checkpoint/manifest.h"

#include <inttypes.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t seen;

/* Elements and bytes of all pieces, which are inside what they say they are of. */
static void walk(const struct manifest *m)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->tensors; i++) {
        const struct manifest_tensor *t = &m->tensor[i];
        int64_t count = 0;
        REQUIRE(manifest_find(m, t->name) == t);
        for (int64_t k = 0; k < t->pieces; k++) {
            const struct shard *s = &t->piece[k];
            REQUIRE(s->part.from < s->part.to && s->part.to <= box_count(&s->box));
            REQUIRE(box_global(&s->box, s->part.from) >= 0);
            REQUIRE(box_global(&s->box, s->part.to - 1) < t->count);
            REQUIRE(t->at[k] + piece_bytes(t, k) <= m->bytes[s->rank]);
            for (int64_t b = 0; b * m->block < piece_bytes(t, k); b++)
                seen = t->hash[k][b];           /* that many are there */
            count += s->part.to - s->part.from;
            bytes += piece_bytes(t, k);
        }
        REQUIRE(count == t->count);
    }
    for (int64_t i = 0; i < m->files; i++)
        bytes -= m->bytes[i];
    REQUIRE(bytes == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a = arena_make("fuzz");
    struct manifest m;
    char *seal = arena_text(&a, ", \"manifest\": \"%016" PRIx64 "\"}",
                            XXH3_64bits(data, size));
    size_t more = strlen(seal);
    char *all = arena_push(&a, size + more);
    memcpy(all, data, size);
    memcpy(all + size, seal, more);
    if (manifest_parse(&a, "fuzz", (struct bytes){all, (int64_t)(size + more)}, &m))
        walk(&m);
    else
        REQUIRE(*fail_message());
    arena_free(&a);
    return 0;
}
