/* tokenizer.c - text to ids and back, once vocabulary.c has read the file. */
#include "data/text/tokenizer.h"

#include "base/file.h"
#include "data/text/unicode.h"
#include "data/text/vocabulary.h"

void ids_add(struct arena *a, struct ids *to, int32_t id)
{
    GROW(a, to->at, to->count, to->room);
    to->at[to->count++] = id;
}

struct tokenizer { struct vocabulary v; };

bool tokenizer_parse(struct arena *a, const char *name, const char *json, int64_t size,
                     struct tokenizer **out)
{
    *out = NEW(a, struct tokenizer, 1);
    if (vocabulary_read(a, json, size, &(*out)->v))
        return true;
    fail_in("tokenizer: %s", name);
    return fail_kind(FAULT_DATA);
}

bool tokenizer_open(struct arena *a, const char *path, struct tokenizer **out)
{
    const int64_t limit = 1 << 28;
    struct arena file = arena_make("tokenizer.json");
    struct bytes json;
    bool ok = file_read(&file, path, limit, &json) &&
              tokenizer_parse(a, path, json.at, json.size, out);
    arena_free(&file);
    return ok || fail_kind(FAULT_DATA);
}

void tokenizer_close(struct tokenizer *t)
{
    vocabulary_free(&t->v);
}

/* ---- encoding: added tokens, normal form, words, merges ---- */

struct encoder {
    const struct vocabulary *v;
    struct arena *a;
    struct ids *out;
    enum special special;
    struct bpe_work work;
    struct pattern_walk *walk[MAX_PATTERNS];
};

static void encode_word(struct encoder *e, const char *word, int64_t size)
{
    int id = e->v->ignore_merges ? vocabulary_bytes_id(e->v, word, size) : -1;
    if (id >= 0)
        ids_add(e->a, e->out, id);
    else
        bpe_word(&e->v->bpe, e->a, &e->work, word, size, e->out);
}

/* What a pattern matches and what lies between its matches both go to the next one. */
static bool encode_words(struct encoder *e, int level, const char *text, int64_t size)
{
    if (level == e->v->npattern) {
        encode_word(e, text, size);
        return true;
    }
    for (int64_t at = 0, start, end; at < size; at = end) {
        if (!pattern_next(e->walk[level], text, size, at, &start, &end))
            return false;
        if (start > at && !encode_words(e, level + 1, text + at, start - at))
            return false;
        if (end > start && !encode_words(e, level + 1, text + start, end - start))
            return false;
    }
    return true;
}

static bool encode_text(struct encoder *e, enum stage stage, const char *text,
                        int64_t size);

/* Text between the added tokens of `stage`. */
static bool encode_between(struct encoder *e, enum stage stage, const char *text,
                           int64_t size)
{
    if (size == 0)
        return true;
    if (stage == NORMAL)
        return encode_words(e, 0, text, size);
    if (e->v->nfc && !unicode_nfc(e->a, text, size, &text, &size))
        return false;
    return encode_text(e, NORMAL, text, size);
}

static bool encode_text(struct encoder *e, enum stage stage, const char *text,
                        int64_t size)
{
    int64_t done = 0;
    for (int64_t at = 0; at < size;) {
        const struct added *t = vocabulary_added(e->v, stage, text + at, size - at);
        if (!t) {
            at++;
            continue;
        }
        int64_t start = at, end = at + t->size;
        at = end;
        if (t->special && (t->harmless ? e->special == SPECIAL_TEXT
                                       : e->special != SPECIAL_ALL))
            continue;
        for (int n = 1; n > 0 && t->lstrip && start > done; start -= n)
            n = unicode_space_before(text + done, start - done);
        for (int n = 1; n > 0 && t->rstrip; end += n)
            n = unicode_space(text + end, size - end);
        if (start > done && !encode_between(e, stage, text + done, start - done))
            return false;
        ids_add(e->a, e->out, t->id);
        done = end;
    }
    return encode_between(e, stage, text + done, size - done);
}

bool tokenizer_encode(const struct tokenizer *t, struct arena *a, const char *text,
                      int64_t size, enum special special, struct ids *out)
{
    const int64_t limit = 1 << 29;      /* NFC makes at most 3 bytes of one */
    if (size > limit)
        fail("tokenizer: a text has %lld byte(s), limit %lld", (long long)size,
             (long long)limit);
    else if (!text_utf8(text, size))
        fail("tokenizer: the text \"%.*s\" is not UTF-8", (int)MIN(size, 60), text);
    else {
        struct encoder e = {.v = &t->v, .a = a, .out = out, .special = special};
        for (int i = 0; i < t->v.npattern; i++)
            e.walk[i] = pattern_walk(t->v.pattern[i], a, size);
        if (encode_text(&e, RAW, text, size))
            return true;
    }
    return fail_kind(FAULT_DATA);
}

int64_t tokenizer_least(const struct tokenizer *t, int64_t size)
{
    int64_t most = (int64_t)t->v.longest * (t->v.nfc ? 3 : 1);  /* bytes of an id */
    return t->v.strips ? 0 : size / most;
}

/* ---- decoding ---- */

static const struct token *token_of(const struct tokenizer *t, int id)
{
    const struct token *at = id >= 0 && id < t->v.size ? &t->v.token[id] : NULL;
    return at && at->name ? at : NULL;
}

char *tokenizer_decode(const struct tokenizer *t, struct arena *a, const int32_t *ids,
                       int64_t count, bool special)
{
    struct text bytes = text_make(a), good = text_make(a);
    for (int64_t i = 0; i < count; i++) {
        const struct token *k = token_of(t, ids[i]);
        if (k && (special || !k->special))
            text_add_bytes(&bytes, k->bytes, k->size);
    }
    unicode_repair(&good, bytes.at, bytes.size);
    return good.at;
}

int tokenizer_id(const struct tokenizer *t, const char *token)
{
    return vocabulary_id(&t->v, token, (int64_t)strlen(token));
}

const char *tokenizer_token(const struct tokenizer *t, int id)
{
    const struct token *k = token_of(t, id);
    return k ? k->name : NULL;
}

int64_t tokenizer_bytes(const struct tokenizer *t, int id)
{
    const struct token *k = token_of(t, id);
    return k ? k->size : 0;
}

bool tokenizer_marker(const struct tokenizer *t, int id)
{
    const struct token *k = token_of(t, id);
    return k && k->marker;
}

bool tokenizer_harmless(const struct tokenizer *t, int id)
{
    const struct token *k = token_of(t, id);
    return k && k->harmless;
}

int tokenizer_size(const struct tokenizer *t)
{
    return t->v.size;
}
