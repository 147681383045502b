/* vocabulary.c - tokenizer.json checked and turned into tables. */
#include "data/text/vocabulary.h"

#include "base/text.h"
#include "data/text/unicode.h"

#include <jansson.h>
#include <stdlib.h>
#include <xxhash.h>

enum { MAX_ID = 1 << 20 };      /* four times the largest known vocabulary */

/* ---- JSON members, or a message that names them ---- */

static const char *const type_name[] = {
    "an object", "an array", "a string", "an integer", "a number", "true", "false",
    "null",
};

static bool wrong(const char *where, const char *key, const json_t *got,
                  const char *want)
{
    return fail("%s: \"%s\" is %s, expected %s", where, key,
                got ? type_name[json_typeof(got)] : "missing", want);
}

static bool member(const json_t *o, const char *where, const char *key, json_type type,
                   json_t **out)
{
    *out = json_object_get(o, key);
    if (*out && json_typeof(*out) == type)
        return true;
    return wrong(where, key, *out, type_name[type]);
}

static bool flag(const json_t *o, const char *where, const char *key, bool preset,
                 bool *out)
{
    const json_t *got = json_object_get(o, key);
    *out = got ? json_is_true(got) : preset;
    return !got || json_is_boolean(got) || wrong(where, key, got, "true or false");
}

static bool text_of(const json_t *o, const char *where, const char *key,
                    const char **out)
{
    json_t *got;
    if (!member(o, where, key, JSON_STRING, &got))
        return false;
    *out = json_string_value(got);
    return true;
}

static bool id_of(const json_t *got, const char *token, int *out)
{
    if (!json_is_integer(got))
        return fail("the id of token \"%s\" is %s, expected an integer", token,
                    got ? type_name[json_typeof(got)] : "missing");
    json_int_t id = json_integer_value(got);
    *out = (int)id;
    return (id >= 0 && id < MAX_ID) ||
           fail("token \"%s\" has id %lld, expected 0 to %d", token, (long long)id,
                MAX_ID - 1);
}

/* ---- tokens by name ---- */

static struct index index_make(struct arena *a, int64_t count)
{
    uint64_t places = 16;
    while (places < 2 * (uint64_t)count)
        places *= 2;
    return (struct index){NEW(a, int32_t, places), places - 1};
}

static const char *key_of(const struct token *t, bool bytes, int64_t *size)
{
    *size = bytes ? t->size : t->name_size;
    return bytes ? t->bytes : t->name;
}

/* The place of a key: its id's, or the free one where it belongs. */
static int32_t *place(const struct vocabulary *v, bool bytes, const char *key,
                      int64_t size)
{
    const struct index *x = bytes ? &v->bytes : &v->name;
    uint64_t i = XXH3_64bits(key, (size_t)size) & x->mask;
    for (; x->place[i]; i = (i + 1) & x->mask) {
        int64_t n;
        const char *other = key_of(&v->token[x->place[i] - 1], bytes, &n);
        if (n == size && memcmp(other, key, (size_t)size) == 0)
            break;
    }
    return &x->place[i];
}

int vocabulary_id(const struct vocabulary *v, const char *name, int64_t size)
{
    return *place(v, false, name, size) - 1;
}

int vocabulary_bytes_id(const struct vocabulary *v, const char *bytes, int64_t size)
{
    return *place(v, true, bytes, size) - 1;
}

/* Memory for a token's text: many small ones, so packed, not aligned. */
static char *keep(struct arena *a, struct vocabulary *v, int64_t size)
{
    if (v->spare_size < size) {
        v->spare_size = MAX(size, 1 << 16);
        v->spare = NEW(a, char, v->spare_size);
    }
    char *at = v->spare;
    v->spare += size;
    v->spare_size -= size;
    return at;
}

/* The bytes a name stands for: itself, unless it is all of the byte alphabet. */
static void spell(struct arena *a, struct vocabulary *v, const char *name, int size,
                  struct token *t)
{
    char *bytes = keep(a, v, size);
    t->bytes = bytes;
    t->size = 0;
    for (int i = 0; i < size;) {
        int32_t code;
        i += unicode_read(name + i, size - i, &code);
        int byte = unicode_to_byte(code);
        if (byte < 0) {
            t->bytes = name;
            t->size = size;
            return;
        }
        bytes[t->size++] = (char)byte;
    }
}

static bool token_set(struct arena *a, struct vocabulary *v, int id, const char *name)
{
    struct token *t = &v->token[id];
    int64_t size = (int64_t)strlen(name);
    if (t->name)
        return fail("tokens \"%s\" and \"%s\" both have id %d", t->name, name, id);
    if (size == 0 || size > INT16_MAX)
        return fail("the token of id %d has %lld byte(s), expected 1 to %d", id,
                    (long long)size, INT16_MAX);
    int32_t *at = place(v, false, name, size);
    if (*at)
        return fail("token \"%s\" has ids %d and %d", name, *at - 1, id);
    char *own = keep(a, v, size + 1);
    memcpy(own, name, (size_t)size + 1);
    *t = (struct token){.name = own, .name_size = (int)size};
    spell(a, v, own, (int)size, t);
    *at = id + 1;
    return true;
}

/* ---- the model: vocabulary and merges ---- */

/* Tables for all ids of the file, the model's and the added ones. */
static bool make_tables(struct arena *a, struct vocabulary *v, json_t *vocab,
                        const json_t *added)
{
    int most = -1;
    size_t i;
    const char *name;
    const json_t *value;
    json_object_foreach(vocab, name, value) {
        int id = 0;
        if (!id_of(value, name, &id))
            return false;
        most = MAX(most, id);
    }
    json_array_foreach(added, i, value) {
        int id = 0;
        if (!text_of(value, "added_tokens", "content", &name) ||
            !id_of(json_object_get(value, "id"), name, &id))
            return false;
        most = MAX(most, id);
    }
    v->size = most + 1;
    v->token = NEW(a, struct token, v->size);
    v->name = index_make(a, (int64_t)json_object_size(vocab)
                                + (int64_t)json_array_size(added));
    json_object_foreach(vocab, name, value)
        if (!token_set(a, v, (int)json_integer_value(value), name))
            return false;
    return true;
}

static bool find_bytes(struct vocabulary *v)
{
    for (int byte = 0; byte < 256; byte++) {
        char name[4];
        int size = unicode_write(name, unicode_from_byte(byte));
        v->bpe.byte[byte] = vocabulary_id(v, name, size);
        if (v->bpe.byte[byte] < 0)
            return fail("model.vocab has no token \"%.*s\" for byte 0x%02x; expected "
                        "all 256 bytes (unk_token and byte_fallback are not supported)",
                        size, name, (unsigned)byte);
    }
    return true;
}

/* A merge is "left right" or ["left", "right"]. */
static bool merge_parts(const json_t *merge, size_t rank, const char **left,
                        int64_t *left_size, const char **right)
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        *left = json_string_value(json_array_get(merge, 0));
        *right = json_string_value(json_array_get(merge, 1));
        *left_size = *left ? (int64_t)strlen(*left) : 0;
        if (*left && *right)
            return true;
    }
    const char *both = json_string_value(merge);
    const char *gap = both ? strchr(both, ' ') : NULL;
    if (!gap || strchr(gap + 1, ' '))
        return fail("merge %zu is not \"left right\" or [\"left\", \"right\"]", rank);
    *left = both;
    *left_size = gap - both;
    *right = gap + 1;
    return true;
}

static bool read_merges(struct vocabulary *v, const json_t *merges)
{
    bool ok = true;
    struct arena scratch = arena_make("merges");
    struct text both = text_make(&scratch);
    size_t rank;
    const json_t *merge;
    json_array_foreach(merges, rank, merge) {
        const char *left = NULL, *right = "";
        int64_t left_size = 0;
        ok = merge_parts(merge, rank, &left, &left_size, &right);
        if (!ok)
            break;
        int64_t right_size = (int64_t)strlen(right);
        both.size = 0;
        text_add_bytes(&both, left, left_size);
        text_add_bytes(&both, right, right_size);
        int x = vocabulary_id(v, left, left_size);
        int y = vocabulary_id(v, right, right_size);
        int id = vocabulary_id(v, both.at, both.size);
        if (x < 0 || y < 0 || id < 0) {
            ok = fail("merge %zu needs the token \"%.*s\", which model.vocab has not",
                      rank, (int)(x < 0 ? left_size : y < 0 ? right_size : both.size),
                      x < 0 ? left : y < 0 ? right : both.at);
            break;
        }
        bpe_add(&v->bpe, x, y, (int32_t)rank, id);
    }
    arena_free(&scratch);
    return ok;
}

static bool read_model(struct arena *a, struct vocabulary *v, const json_t *root,
                       const json_t *added)
{
    json_t *model, *vocab, *merges;
    const char *type;
    if (!member(root, "file", "model", JSON_OBJECT, &model) ||
        !text_of(model, "model", "type", &type))
        return false;
    if (strcmp(type, "BPE") != 0)
        return fail("the model is %s, only BPE is supported", type);
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return fail("model.dropout is not supported, expected null");
    static const char *const affix[] = {"continuing_subword_prefix",
                                        "end_of_word_suffix"};
    for (int i = 0; i < COUNT(affix); i++) {
        const json_t *got = json_object_get(model, affix[i]);
        if (got && !json_is_null(got) && json_string_length(got) != 0)
            return fail("model.%s is not supported, expected null", affix[i]);
    }
    if (!member(model, "model", "vocab", JSON_OBJECT, &vocab) ||
        !member(model, "model", "merges", JSON_ARRAY, &merges) ||
        !flag(model, "model", "ignore_merges", false, &v->ignore_merges) ||
        !make_tables(a, v, vocab, added))
        return false;
    v->bpe = bpe_make(a, (int64_t)json_array_size(merges));
    if (!find_bytes(v) || !read_merges(v, merges))
        return false;
    if (v->ignore_merges)
        v->bytes = index_make(a, v->size);
    for (int id = 0; v->ignore_merges && id < v->size; id++) {
        const struct token *t = &v->token[id];
        if (t->name && t->bytes != t->name)
            *place(v, true, t->bytes, t->size) = id + 1;
    }
    return true;
}

/* ---- added tokens ---- */

/* Tokens that say where turns, texts and images begin and end: the template's alone. */
static bool control(const char *name)
{
    static const char *const within[] = {"vision", "image", "img", "video", "audio"};
    static const char *const begins[] = {
        "<|im_", "<|endof", "<|end_of", "<|begin_of", "<|eot", "<|eom", "<|eos",
        "<|bos", "<|pad", "<|start_header", "<|end_header", "<|fim_", "<|repo_name",
        "<|file_sep", "<|system", "<|user", "<|assistant", "<|tool", "<s>", "</s>",
        "<pad>", "<unk>", "<bos>", "<eos>", "<mask>", "["};
    for (int i = 0; i < COUNT(within); i++)
        if (strstr(name, within[i]))
            return true;
    for (int i = 0; i < COUNT(begins); i++)
        if (text_starts(name, begins[i]))
            return true;
    return false;
}

static bool read_added_token(struct arena *a, struct vocabulary *v, const json_t *o)
{
    struct added t = {.shorter = -1};
    bool word, normalized;
    const char *name = json_string_value(json_object_get(o, "content"));
    t.id = (int)json_integer_value(json_object_get(o, "id"));
    if (!flag(o, name, "special", false, &t.special) ||
        !flag(o, name, "lstrip", false, &t.lstrip) ||
        !flag(o, name, "rstrip", false, &t.rstrip) ||
        !flag(o, name, "single_word", false, &word) ||
        !flag(o, name, "normalized", !t.special, &normalized))
        return false;
    if (word)
        return fail("added token \"%s\": single_word is not supported", name);
    struct token *k = &v->token[t.id];
    if ((!k->name || strcmp(k->name, name) != 0) && !token_set(a, v, t.id, name))
        return false;
    if (k->added)
        return fail("added token \"%s\" is given twice", name);
    k->added = true;
    k->special = t.special;
    k->marker = t.special && !t.lstrip && !t.rstrip && !normalized;
    k->harmless = t.harmless = k->marker && !control(name);
    v->strips |= t.lstrip || t.rstrip;
    t.text = k->name;
    t.size = k->name_size;
    if (normalized && v->nfc) {         /* looked for and written in normal form */
        if (!unicode_nfc(a, t.text, t.size, &t.text, &t.size))
            return false;
        spell(a, v, t.text, (int)t.size, k);
    }
    struct added_list *list = &v->added[normalized ? NORMAL : RAW];
    GROW(a, list->at, list->count, list->room);
    list->at[list->count++] = t;
    return true;
}

static int bytes_order(const char *a, int64_t m, const char *b, int64_t n)
{
    int order = memcmp(a, b, (size_t)MIN(m, n));
    return order ? order : (m > n) - (m < n);
}

static int added_order(const void *x, const void *y)
{
    const struct added *a = x, *b = y;
    int order = bytes_order(a->text, a->size, b->text, b->size);
    return order ? order : (a->id > b->id) - (a->id < b->id);
}

static bool begins(const struct added *t, const struct added *with)
{
    return t->size >= with->size && !memcmp(t->text, with->text, (size_t)with->size);
}

/* Sorted, so that the one looked for, or one that it begins, is found by halving. */
static void added_sort(struct added_list *list)
{
    int64_t kept = 0;
    if (list->count)
        qsort(list->at, (size_t)list->count, sizeof *list->at, added_order);
    for (int64_t i = 0; i < list->count; i++) {
        struct added *t = &list->at[i];
        int64_t before = kept - 1;      /* what begins it is the last or begins that */
        while (before >= 0 && !begins(t, &list->at[before]))
            before = list->at[before].shorter;
        if (before >= 0 && list->at[before].size == t->size)
            continue;                   /* of one normal form: the lower id counts */
        t->shorter = before;
        list->at[kept++] = *t;
    }
    list->count = kept;
    for (int byte = 0, i = 0; byte <= 256; byte++) {
        while (i < kept && (unsigned char)*list->at[i].text < byte)
            i++;
        list->from[byte] = i;
    }
}

const struct added *vocabulary_added(const struct vocabulary *v, enum stage stage,
                                     const char *text, int64_t size)
{
    const struct added_list *list = &v->added[stage];
    int64_t first = list->from[(unsigned char)*text], low = first;
    int64_t high = list->from[(unsigned char)*text + 1];
    while (low < high) {                /* the first that sorts behind the text */
        int64_t middle = low + (high - low) / 2;
        const struct added *t = &list->at[middle];
        if (bytes_order(t->text, t->size, text, size) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == first)
        return NULL;
    const struct added *near = &list->at[low - 1];
    int64_t same = 0, i = low - 1;
    while (same < MIN(near->size, size) && near->text[same] == text[same])
        same++;
    while (i >= 0 && list->at[i].size > same)
        i = list->at[i].shorter;
    return i < 0 ? NULL : &list->at[i];
}

static bool read_added(struct arena *a, struct vocabulary *v, const json_t *added)
{
    size_t i;
    const json_t *o;
    json_array_foreach(added, i, o)
        if (!read_added_token(a, v, o))
            return false;
    for (int stage = 0; stage < STAGES; stage++)
        added_sort(&v->added[stage]);
    for (int id = 0; id < v->size; id++)
        v->longest = MAX(v->longest, v->token[id].size);
    return true;
}

/* ---- normaliser, pre-tokenizer, decoder ---- */

static bool read_normalizer(struct vocabulary *v, const json_t *o)
{
    const char *type;
    json_t *list;
    if (!o || json_is_null(o))
        return true;
    if (!text_of(o, "normalizer", "type", &type))
        return false;
    if (strcmp(type, "NFC") == 0) {
        v->nfc = true;
        return true;
    }
    if (strcmp(type, "Sequence") != 0)
        return fail("normalizer %s is not supported, only NFC", type);
    if (!member(o, "normalizer", "normalizers", JSON_ARRAY, &list))
        return false;
    size_t i;
    const json_t *part;
    json_array_foreach(list, i, part)
        if (!read_normalizer(v, part))
            return false;
    return true;
}

static bool add_pattern(struct arena *a, struct vocabulary *v, const char *text)
{
    if (v->npattern == MAX_PATTERNS)
        return fail("pre_tokenizer: more than %d pattern(s)", MAX_PATTERNS);
    if (!pattern_make(a, text, &v->pattern[v->npattern]))
        return false;
    v->npattern++;
    return true;
}

static bool read_split(struct arena *a, struct vocabulary *v, const json_t *o)
{
    json_t *pattern;
    const char *text, *behavior;
    bool invert;
    if (!member(o, "pre_tokenizer Split", "pattern", JSON_OBJECT, &pattern) ||
        !text_of(pattern, "pre_tokenizer Split pattern", "Regex", &text) ||
        !text_of(o, "pre_tokenizer Split", "behavior", &behavior) ||
        !flag(o, "pre_tokenizer Split", "invert", false, &invert))
        return false;
    if (strcmp(behavior, "Isolated") != 0 || invert)
        return fail("pre_tokenizer Split: behavior %s%s is not supported, only "
                    "Isolated", behavior, invert ? " with invert" : "");
    return add_pattern(a, v, text);
}

static bool read_byte_level(struct arena *a, struct vocabulary *v, const json_t *o)
{
    static const char gpt2[] =          /* what use_regex stands for */
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+"
        "| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    bool prefix, regex;
    if (!flag(o, "pre_tokenizer ByteLevel", "add_prefix_space", true, &prefix) ||
        !flag(o, "pre_tokenizer ByteLevel", "use_regex", true, &regex))
        return false;
    if (prefix)
        return fail("pre_tokenizer ByteLevel: add_prefix_space is not supported");
    return !regex || add_pattern(a, v, gpt2);
}

/* Splits, if any, then ByteLevel. */
static bool read_pre_tokenizer(struct arena *a, struct vocabulary *v,
                               const json_t *root)
{
    json_t *o, *list = NULL;
    const char *type;
    if (!member(root, "file", "pre_tokenizer", JSON_OBJECT, &o) ||
        !text_of(o, "pre_tokenizer", "type", &type))
        return false;
    bool sequence = strcmp(type, "Sequence") == 0;
    if (sequence && !member(o, "pre_tokenizer", "pretokenizers", JSON_ARRAY, &list))
        return false;
    size_t count = sequence ? json_array_size(list) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *part = sequence ? json_array_get(list, i) : o;
        bool last = i + 1 == count;
        if (!text_of(part, "pre_tokenizer", "type", &type))
            return false;
        if (strcmp(type, last ? "ByteLevel" : "Split") != 0)
            return fail("pre_tokenizer %s is not supported here, only %s", type,
                        last ? "ByteLevel at the end" : "Split before ByteLevel");
        if (!(last ? read_byte_level : read_split)(a, v, part))
            return false;
    }
    return count > 0 ||
           fail("pre_tokenizer: the Sequence is empty, expected ByteLevel");
}

static bool read_decoder(const json_t *root)
{
    json_t *o;
    const char *type;
    if (!member(root, "file", "decoder", JSON_OBJECT, &o) ||
        !text_of(o, "decoder", "type", &type))
        return false;
    return strcmp(type, "ByteLevel") == 0 ||
           fail("decoder %s is not supported, only ByteLevel", type);
}

bool vocabulary_read(struct arena *a, const char *json, int64_t size,
                     struct vocabulary *v)
{
    json_error_t error;
    json_t *root = json_loadb(json, (size_t)size, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return fail("line %d, column %d: %s", error.line, error.column, error.text);
    const json_t *added = json_object_get(root, "added_tokens");
    bool ok = !added || json_is_array(added) ||
              wrong("file", "added_tokens", added, "an array");
    *v = (struct vocabulary){0};
    ok = ok && read_normalizer(v, json_object_get(root, "normalizer")) &&
         read_model(a, v, root, added) && read_added(a, v, added) &&
         read_pre_tokenizer(a, v, root) && read_decoder(root);
    json_decref(root);
    if (!ok)
        vocabulary_free(v);
    return ok;
}

void vocabulary_free(struct vocabulary *v)
{
    for (int i = 0; i < v->npattern; i++)
        pattern_free(v->pattern[i]);
    v->npattern = 0;
}
