/* hf_json.h - the JSON files of a model folder, key by key.
 *
 * Every key that changes what is computed is read or refused, none is guessed; a key
 * that is absent or null has its preset.  After the first failure the reader keeps its
 * message and goes on with presets: whoever made it looks at `ok` at the end. */
#ifndef CHECKPOINT_HF_JSON_H
#define CHECKPOINT_HF_JSON_H

#include "base/file.h"
#include "base/text.h"

#include <jansson.h>

enum { CONFIG_MOST = 16 << 20 };        /* bytes of such a file */

struct reader {                         /* one JSON object and where it is from */
    const char *file, *section;         /* the second ends in "." or is "" */
    json_t *object;
    bool ok;
    struct text *notes;                 /* lines on what is said twice; or NULL */
};

/* An object from text; `name` is for messages.  The caller json_decrefs it.  What is no
 * number to jansson (NaN, 1e999) is text there: only who reads such a field refuses. */
MUST_USE bool json_read(const char *name, const char *json, int64_t size, json_t **out);

json_t *field(struct reader *r, const char *key);       /* NULL: absent or null */
/* "config: FILE: KEY is VALUE, expected ...". */
void wrong(struct reader *r, const char *key, const char *expected);
/* One more line of notes. */
void note(struct reader *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
enum { NEEDED = INT32_MIN };            /* as a preset: the key must be there */
int read_int(struct reader *r, const char *key, int preset, int least, int most);
double read_real(struct reader *r, const char *key, double preset, double least);
bool read_bool(struct reader *r, const char *key, bool preset);
/* Numbers 0..largest of a list; how many, at most `most`. */
int read_list(struct reader *r, const char *key, int *to, int most, int largest);
/* Three numbers, if the key is there. */
void read_channels(struct reader *r, const char *key, double least, float to[3]);
/* The key must be absent or say exactly this. */
void only_text(struct reader *r, const char *key, const char *value);
void only_real(struct reader *r, const char *key, double value);
void only_bool(struct reader *r, const char *key, bool value);
/* A reader of the object under this key, which must be there. */
struct reader section(struct reader *top, const char *key, const char *prefix);

#endif
