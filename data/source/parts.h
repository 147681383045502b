/* parts.h - what the readers of source.h share: the reader interface, JSON
 * and captions to samples, image references, ranges of files.  Only data/source*.c
 * include it. */
#ifndef SOURCE_PARTS_H
#define SOURCE_PARTS_H

#include "data/source/source.h"

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
    const char *path, *format, *prompt, *match;
    const char *ignore;                 /* words: what is not read; NULL none */
    void *state;                        /* the reader's */
    int64_t total;                      /* samples that the reader knows */
    int64_t count, *kept;               /* after match and limit; NULL: the first */
    uint64_t hash;
    const char *remark;                 /* see source_remark; NULL: none */
};

#define READABLE "images with captions in .txt or metadata.jsonl, JSON lists and "    \
                 "lines, tar shards that are not compressed"
/* Fails if the file is of a kind that is known and not read: Parquet, CSV, tar.gz. */
MUST_USE bool foreign_check(const char *path);
const char *foreign_named(const char *name);    /* what it is; NULL: not such a name */

#define metadata_name "metadata.jsonl"  /* of format imagefolder, in its folder */

/* How a JSON format spells samples and their images. */
enum records { DIALECT_TURNS, DIALECT_ALPACA, DIALECT_CAPTIONS };
struct dialect {
    const char *format;
    bool placeholders;                  /* "<image>" in text stands for an image */
    bool newline;                       /* one line break beside it belongs to it */
    enum records records;
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

/* Parse one JSON object, without the keys that the source ignores; duplicate keys and
 * NULs in strings are refused, and outside harmless keys numbers that are none or too
 * large (NaN, 1e999); nesting ends at jansson's limit.  With `turns` a list becomes
 * {"messages": list}.  NULL: failed.  The caller json_decref()s it. */
json_t *json_object_parse(const struct source *s, struct bytes text, bool turns);

/* Keys.  What is null, "", [] or {} is as good as not there. */
enum level { LEVEL_RECORD, LEVEL_TURN, LEVEL_PART, LEVELS, LEVEL_OTHER = LEVELS };
extern const char *const *const keys_about[LEVELS];     /* harmless ones, NULL ends */
bool value_filled(const json_t *value);
bool key_filled(const json_t *object, const char *key);
/* Is every filled key among `used` (NULL ends) or harmless?  Fails naming one that is
 * not. */
MUST_USE bool keys_check(const json_t *object, enum level level,
                         const char *const *used);
/* Removes the keys named in `words` at any depth. */
void keys_ignore(json_t *value, const char *words);
/* Does a text that begins with `mark` stand under no key but harmless ones? */
MUST_USE bool keys_unmarked(const json_t *value, enum level level, const char *mark);
bool word_listed(const char *words, const char *word);

/* The text of an assistant's tool calls, `behind` other text. */
MUST_USE bool tool_calls_text(struct arena *item, const json_t *calls, bool behind,
                              const char **out);
/* The text that tells of a list of tools. */
MUST_USE bool tools_text(struct arena *item, const json_t *tools, const char **out);
/* The same record with "messages".  NULL: failed.  The caller json_decref()s it. */
json_t *record_from_alpaca(struct arena *item, const json_t *object);
/* A record of DIALECT_CAPTIONS. */
MUST_USE bool sample_from_file_name(struct arena *item, const char *prompt,
                                    const json_t *object, const struct shelf *shelf,
                                    struct sample *out);
/* The object's "caption" or "text", if it has one; must not differ from *out, if that
 * is a text already. */
MUST_USE bool caption_of(const json_t *object, struct bytes *out);
/* A parsed object of turns to messages and images. */
MUST_USE bool sample_from_json(struct arena *item, const json_t *object,
                               const struct dialect *d, const struct shelf *shelf,
                               struct sample *out);
/* Is every piece of text free of marks of what is not there? */
MUST_USE bool marks_known(struct arena *item, const struct sample *sample);
/* All images of `out`, then the prompt, answered by the caption without the white space
 * around it. */
MUST_USE bool sample_from_caption(struct arena *item, const char *prompt,
                                  struct bytes caption, struct sample *out);

/* A path, a file:// or data: URI, or a member's label with or
 * without its key. */
MUST_USE bool image_reference(struct arena *item, const char *text, size_t size,
                              const struct shelf *shelf, const char *name,
                              struct image_source *out);
/* Files called like images in a folder and in those within, as names below it. */
MUST_USE bool folder_images(struct arena *a, const char *path, char ***name,
                            int64_t *count);
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
