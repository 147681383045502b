/* image_files.h - image bytes that tests read, cut and forge. */
#ifndef TESTS_DATA_IMAGE_FILES_H
#define TESTS_DATA_IMAGE_FILES_H

#include "check.h"

#include "data/image/image.h"

static const struct image_rules usual = {EXIF_APPLY, ALPHA_WHITE};

static inline struct bytes image_file(struct arena *a, const char *name)
{
    struct bytes file;
    assert_ok(file_read(a, path_join(a, "tests/data/image", name), 1 << 20, &file));
    return file;
}

/* The first `size` bytes in memory of exactly that size, so that a sanitizer sees reads
 * past the end; free() it. */
static inline struct bytes image_prefix(struct bytes file, int64_t size)
{
    struct bytes cut = {malloc(size ? (size_t)size : 1), size};
    assert_non_null(cut.at);
    if (size)
        memcpy(cut.at, file.at, (size_t)size);
    return cut;
}

static inline bool decodes(struct bytes file, struct image_rules rules,
                           const struct image_limits *limits)
{
    struct arena a = arena_make("decode");
    struct picture p;
    bool ok = image_decode(&a, file, rules, limits, &p);
    arena_free(&a);
    return ok;
}

#endif
