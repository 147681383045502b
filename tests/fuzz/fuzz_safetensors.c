/* fuzz_safetensors.c - any bytes as a safetensors file: refused, or safe to walk. */
#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a = arena_make("fuzz");
    struct bytes file = {(char *)data, (int64_t)size};          /* of its exact size */
    struct safetensors s;
    if (safetensors_parse(&a, "fuzz", file, &s)) {
        const char *end = s.count ? s.tensor[0].data : NULL;
        int64_t sum = 0;
        for (int64_t i = 0; i < s.count; i++) {
            const struct disk_tensor *t = &s.tensor[i];
            const unsigned char *at = t->data;
            REQUIRE((const char *)t->data == end);
            REQUIRE(disk_count(t->ndim, t->dim) == t->count);
            REQUIRE(t->count * dtype_bytes(t->dtype) == t->bytes);
            REQUIRE(safetensors_find(&s, t->name) == t);
            for (int64_t k = 0; k < t->bytes; k++)
                sum += at[k];
            end = (const char *)at + t->bytes;
        }
        REQUIRE(s.count == 0 || end == file.at + file.size);
        for (int64_t i = 0; i < s.nmeta; i++)
            REQUIRE(safetensors_meta(&s, s.meta[2 * i]) == s.meta[2 * i + 1]);
        REQUIRE(sum >= 0);
    } else {
        REQUIRE(*fail_message());
    }
    arena_free(&a);
    return 0;
}
