/* vocabulary.h - a tokenizer.json as tables: what tokenizer.c works with.
 *
 * Reading the file is apart from using it: it is the only part that knows JSON. */
#ifndef TEXT_VOCABULARY_H
#define TEXT_VOCABULARY_H

#include "data/text/bpe.h"
#include "data/text/pattern.h"

enum { MAX_PATTERNS = 8 };

struct token {                          /* one id */
    const char *name;                   /* as in the file; NULL: no such id */
    int name_size;
    const char *bytes;                  /* the text it stands for, any bytes */
    int size;
    bool added;                         /* among the file's added tokens */
    bool special, marker, harmless;     /* see tokenizer_marker, enum special */
};

/* Added tokens are cut out of the text as given, or after the normaliser. */
enum stage { RAW, NORMAL, STAGES };

struct added {
    int id;
    const char *text;                   /* what is looked for */
    int64_t size;
    bool special, harmless, lstrip, rstrip;
    int64_t shorter;                    /* the longest other that begins this; or -1 */
};

struct added_list {                     /* of one stage, sorted bytewise */
    struct added *at;
    int64_t count, room;
    int64_t from[257];                  /* where those with a first byte begin */
};

struct index {                          /* ids by a key */
    int32_t *place;                     /* id + 1; 0: free */
    uint64_t mask;                      /* places - 1; places are a power of two */
};

struct vocabulary {
    int size;                           /* highest id + 1 */
    struct token *token;                /* [size] */
    struct index name, bytes;           /* bytes: only with ignore_merges */
    struct bpe bpe;
    struct added_list added[STAGES];
    int longest;                        /* bytes of a token */
    bool strips;                        /* a token takes white space beside it along */
    char *spare;                        /* memory for the next names, while reading */
    int64_t spare_size;
    bool nfc, ignore_merges;
    int npattern;
    struct pattern *pattern[MAX_PATTERNS];
};

/* Fails with what the file lacks or asks for; the caller adds its name. */
MUST_USE bool vocabulary_read(struct arena *a, const char *json, int64_t size,
                              struct vocabulary *v);
void vocabulary_free(struct vocabulary *v);
/* The id of a token by its name, or (with ignore_merges, the model's own tokens) by its
 * bytes; -1: none. */
int vocabulary_id(const struct vocabulary *v, const char *name, int64_t size);
int vocabulary_bytes_id(const struct vocabulary *v, const char *bytes, int64_t size);
/* The longest added token of this stage that the text starts with; NULL: none. */
const struct added *vocabulary_added(const struct vocabulary *v, enum stage stage,
                                     const char *text, int64_t size);

#endif
