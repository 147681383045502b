/* fuzz_tar.c - any bytes as a tar shard: refused with its name, or every sample is read
 * from inside it or refused with its name. */
#include "tests/fuzz/memory_file.h"

#include "base/log.h"
#include "base/text.h"
#include "data/source/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = memory_file(data, size, path);
    struct arena a = arena_make("fuzz"), item = arena_make("item");
    struct source_options o = {.path = path, .format = "webdataset"};
    struct source *s;
    log_set(LOG_WARN, 1);
    if (source_open(&a, &o, &s)) {
        for (int64_t i = 0; i < source_count(s); i++) {
            struct sample got;
            if (!source_read(s, i, &item, &got))
                REQUIRE(text_starts(fail_message(), got.name));
            else
                for (int k = 0; k < got.nimage; k++)
                    REQUIRE(!got.image[k].path &&
                            got.image[k].data.size <= (int64_t)size);
            arena_free(&item);
        }
        source_close(s);
    } else {
        REQUIRE(text_starts(fail_message(), path));
    }
    arena_free(&a);
    close(fd);
    return 0;
}
