/* fuzz_json.c - any bytes as a JSON list or JSON lines, in every format: samples are
 * read or refused with a message that fits, and what is read can be walked. */
#include "tests/fuzz/memory_file.h"

#include "base/log.h"
#include "base/text.h"
#include "data/source/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void sample_walk(struct arena *item, const struct sample *s)
{
    for (int i = 0; i < s->nmessage; i++) {
        REQUIRE(s->message[i].role >= 0 && s->message[i].role < ROLES);
        for (int k = 0; k < s->message[i].npiece; k++) {
            const struct piece *p = &s->message[i].piece[k];
            REQUIRE(p->image < s->nimage);
            REQUIRE(p->image >= 0 || text_utf8(p->text, (int64_t)strlen(p->text)));
        }
    }
    for (int i = 0; i < s->nimage; i++) {
        struct bytes got;
        if (!s->image[i].path) /* the fuzzer opens no files by name */
            REQUIRE(image_source_read(item, &s->image[i], &got) || *fail_message());
        REQUIRE(s->image[i].name);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const format[] = {"auto",   "llava",  "sharegpt",
                                         "openai", "alpaca", "imagefolder"};
    char path[64];
    int fd = memory_file(data, size, path);
    log_set(LOG_WARN, 1);
    for (int f = 0; f < COUNT(format); f++) {
        struct arena a = arena_make("fuzz"), item = arena_make("item");
        struct source_options o = {
            .path = path, .format = format[f], .images = "images"};
        struct source *s;
        fail_clear();
        if (!source_open(&a, &o, &s)) {
            REQUIRE(fail_fault() == FAULT_DATA && text_starts(fail_message(), path));
            arena_free(&a);
            continue;
        }
        for (int64_t i = 0; i < source_count(s); i++) {
            struct sample got;
            if (source_read(s, i, &item, &got))
                sample_walk(&item, &got);
            else
                REQUIRE(text_starts(fail_message(), got.name));
            arena_free(&item);
        }
        source_close(s);
        arena_free(&a);
    }
    close(fd);
    return 0;
}
