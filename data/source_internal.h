/* source_internal.h - what the readers of source.h share: the reader interface, JSON
 * and captions to samples, image references, ranges of files.  Only data/source*.c
 * include it. */
#ifndef DATA_SOURCE_INTERNAL_H
#define DATA_SOURCE_INTERNAL_H

#include "data/source.h"

#include <jansson.h>

enum {
    IMAGE_BYTES = 1 << 28,              /* largest image file, tar member or data URI */
    TEXT_BYTES = 1 << 28,               /* largest JSON record, with its images */
    CAPTION_BYTES = 1 << 20,
};

/* One format: how to open, name and read.  `open` fills state, total and hash. */
struct reader {
    bool (*open)(struct arena *a, const struct source_options *o, struct source *s);
    const char *(*name)(const struct source *s, int64_t index, struct arena *item);
    /* out->name and out->id are set by the caller, who also puts the name in front of
     * failures; everything else of `out` is zero. */
    bool (*read)(const struct source *s, int64_t index, struct arena *item,
                 struct sample *out);
    void (*close)(struct source *s);    /* NULL: the arena holds everything */
};
extern const struct reader reader_folder, reader_json, reader_webdataset;

struct source {
    const struct reader *reader;
    const char *path, *format, *prompt;
    void *state;                        /* the reader's */
    int64_t total;                      /* samples that the reader knows */
    int64_t count, *kept;               /* after match and limit; NULL: the first */
    uint64_t hash;
};

/* How a JSON format spells images. */
struct dialect {
    const char *format;
    bool placeholders;                  /* "<image>" in text stands for an image */
    bool newline;                       /* one line break beside it belongs to it */
};
/* NULL: no such format. */
const struct dialect *dialect_named(const char *format);
/* Decided by the keys of one sample; NULL when they allow several. */
const struct dialect *dialect_of(const json_t *object);

/* What image references in JSON may mean: files below a folder, or members of a key. */
struct shelf {
    const char *folder;                 /* relative paths start here; NULL: no files */
    int count;                          /* members, in the shard's order */
    const struct image_source *member;
    const char *const *label;           /* "KEY.jpg", "KEY.0.png": without folders */
};

/* Parse one JSON object; duplicate keys and NULs in strings are refused, nesting ends
 * at jansson's limit.  NULL: failed.  The caller json_decref()s it. */
json_t *json_object_parse(struct bytes text);
/* A parsed object to messages and images. */
MUST_USE bool sample_from_json(struct arena *item, const json_t *object,
                               const struct dialect *d, const struct shelf *shelf,
                               struct sample *out);
/* All images of `out`, then the prompt, answered by the caption without the white space
 * around it. */
MUST_USE bool sample_from_caption(struct arena *item, const char *prompt,
                                  struct bytes caption, struct sample *out);

/* A path, a file:// or data: URI, or a member's label with or
 * without its key. */
MUST_USE bool image_reference(struct arena *item, const char *text, size_t size,
                              const struct shelf *shelf, const char *name,
                              struct image_source *out);
/* Is it called like an image (`readable`: like one that can be read)?  Any case. */
bool image_named(const char *file, bool readable);

/* `size` bytes of an open file from `offset` on, with a NUL after them. */
MUST_USE bool file_range(struct arena *item, int fd, int64_t offset, int64_t size,
                         struct bytes *out);
/* Chain `size` bytes onto a hash. */
uint64_t hash_more(uint64_t hash, const void *from, int64_t size);
uint64_t hash_text(uint64_t hash, const char *text);    /* with its NUL; NULL is "" */
bool is_blank(char c);                  /* JSON's white space */
const char *base_name(const char *path);
/* For sorting names bytewise by qsort. */
int name_order(const void *a, const void *b);

#endif
