/* manifest.c - the manifest as JSON, in and out, and what must hold of it.
 *
 * Stands alone because it is the format: no file but its text is touched here. */
#include "checkpoint/manifest.h"

#include "base/text.h"
#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <xxhash.h>

enum { HASH_DIGITS = 16, BLOCK_LEAST = 1 << 10, BLOCK_MOST = 1 << 30 };

int64_t piece_bytes(const struct manifest_tensor *t, int64_t piece)
{
    const struct stretch *part = &t->piece[piece].part;
    return (part->to - part->from) * dtype_bytes(t->dtype);
}

/* ---- every element and every byte once ---- */

static int by_name(const void *a, const void *b)
{
    const struct manifest_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* First the boxes, in their order; then the parts of one box. */
static int by_box_and_part(const void *a, const void *b)
{
    const struct shard *x = *(const struct shard *const *)a;
    const struct shard *y = *(const struct shard *const *)b;
    for (int d = 0; d < x->box.ndim; d++)
        if (x->box.from[d] != y->box.from[d])
            return x->box.from[d] < y->box.from[d] ? -1 : 1;
    if (x->part.from != y->part.from)
        return x->part.from < y->part.from ? -1 : 1;
    return x < y ? -1 : x > y;
}

static const char *box_text(struct arena *a, const struct box *b)
{
    struct text t = text_make(a);
    for (int d = 0; d < b->ndim; d++)
        text_add(&t, "%s%" PRId64 "..%" PRId64, d ? ", " : "[", b->from[d],
                 b->from[d] + b->size[d]);
    text_add(&t, "]");
    return t.at;
}

/* Equal boxes that begin at multiples of their size are the same or apart. */
static bool boxes_check(struct arena *a, const char *path,
                        const struct manifest_tensor *t)
{
    const struct box *first = &t->piece[0].box;
    for (int64_t i = 0; i < t->pieces; i++) {
        const struct box *b = &t->piece[i].box;
        for (int d = 0; d < t->ndim; d++)
            if (b->size[d] != first->size[d] || b->from[d] % b->size[d])
                return fail("checkpoint: %s: tensor '%s': boxes %s of file %d and %s "
                            "of file %d do not fit together", path, t->name,
                            box_text(a, first), t->piece[0].rank, box_text(a, b),
                            t->piece[i].rank);
    }
    return true;
}

static bool gap(struct arena *a, const char *path, const struct manifest_tensor *t,
                const struct box *box, int64_t from, int64_t to)
{
    return fail("checkpoint: %s: tensor '%s': no file has elements %" PRId64 " to %"
                PRId64 " of box %s", path, t->name, from, to, box_text(a, box));
}

static bool same_box(const struct shard *x, const struct shard *y)
{
    return !memcmp(x->box.from, y->box.from, sizeof x->box.from);
}

static bool tensor_check(struct arena *a, const char *path,
                         const struct manifest_tensor *t)
{
    if (!boxes_check(a, path, t))
        return false;
    const struct shard **sorted = NEW(a, const struct shard *, t->pieces);
    for (int64_t i = 0; i < t->pieces; i++)
        sorted[i] = &t->piece[i];
    qsort(sorted, (size_t)t->pieces, sizeof *sorted, by_box_and_part);
    int64_t box = box_count(&t->piece[0].box), end = 0, sum = 0;
    for (int64_t i = 0; i < t->pieces; i++) {
        const struct shard *s = sorted[i];
        if (i == 0 || !same_box(sorted[i - 1], s))
            end = 0;
        if (s->part.from > end)
            return gap(a, path, t, &s->box, end, s->part.from);
        if (s->part.from < end)
            return fail("checkpoint: %s: tensor '%s': files %d and %d both have "
                        "element %" PRId64 " of box %s", path, t->name,
                        sorted[i - 1]->rank, s->rank, s->part.from,
                        box_text(a, &s->box));
        end = s->part.to;
        sum += end - s->part.from;
        if ((i + 1 == t->pieces || !same_box(s, sorted[i + 1])) && end < box)
            return gap(a, path, t, &s->box, end, box);
    }
    return sum == t->count ||
           fail("checkpoint: %s: tensor '%s' has %" PRId64 " element(s), its pieces "
                "%" PRId64, path, t->name, t->count, sum);
}

struct extent { int64_t file, from, to; };

static int by_place(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

static bool files_check(struct arena *a, const char *path, const struct manifest *m)
{
    int64_t count = 0, n = 0;
    for (int64_t i = 0; i < m->tensors; i++)
        count += m->tensor[i].pieces;
    struct extent *x = NEW(a, struct extent, count + 1);
    for (int64_t i = 0; i < m->tensors; i++) {
        const struct manifest_tensor *t = &m->tensor[i];
        for (int64_t k = 0; k < t->pieces; k++)
            x[n++] = (struct extent){t->piece[k].rank, t->at[k],
                                     t->at[k] + piece_bytes(t, k)};
    }
    qsort(x, (size_t)n, sizeof *x, by_place);
    for (int64_t file = 0, i = 0; file < m->files; file++) {
        int64_t end = 0;
        for (; i < n && x[i].file == file; end = x[i++].to)
            if (x[i].from != end)
                return fail("checkpoint: %s: pieces of file %" PRId64 " meet at bytes "
                            "%" PRId64 " and %" PRId64, path, file, end, x[i].from);
        if (end != m->bytes[file])
            return fail("checkpoint: %s: file %" PRId64 " has %" PRId64 " byte(s), its "
                        "pieces %" PRId64, path, file, m->bytes[file], end);
    }
    return true;
}

static bool manifest_check(const char *path, struct manifest *m)
{
    struct arena a = arena_make("manifest");
    bool ok = true;
    for (int64_t i = 0; i < m->tensors && ok; i++)
        ok = tensor_check(&a, path, &m->tensor[i]);
    ok = ok && files_check(&a, path, m);
    arena_free(&a);
    return ok;
}

/* ---- reading ---- */

/* A list of exactly `count` whole numbers of at least `least`. */
static bool numbers(const json_t *list, int64_t count, int64_t least, int64_t *to)
{
    if (!json_is_array(list) || (int64_t)json_array_size(list) != count)
        return false;
    for (int64_t i = 0; i < count; i++) {
        const json_t *j = json_array_get(list, (size_t)i);
        if (!json_is_integer(j) || json_integer_value(j) < least)
            return false;
        to[i] = json_integer_value(j);
    }
    return true;
}

static bool hash_parse(const char *digits, uint64_t *out)
{
    char text[HASH_DIGITS + 1] = {0};
    memcpy(text, digits, HASH_DIGITS);
    return strspn(text, "0123456789abcdef") == HASH_DIGITS &&
           sscanf(text, "%" SCNx64, out) == 1;
}

static bool hashes_parse(struct arena *a, const json_t *j, int64_t blocks,
                         const uint64_t **out)
{
    const char *text = json_string_value(j);
    if (!text || (int64_t)json_string_length(j) / HASH_DIGITS != blocks ||
        json_string_length(j) % HASH_DIGITS)
        return false;
    uint64_t *hash = NEW(a, uint64_t, blocks);
    for (int64_t i = 0; i < blocks; i++)
        if (!hash_parse(text + i * HASH_DIGITS, &hash[i]))
            return false;
    *out = hash;
    return true;
}

static bool piece_parse(struct arena *a, const json_t *j, const struct manifest *m,
                        struct manifest_tensor *t, int64_t i)
{
    struct box b = {.ndim = t->ndim};
    int64_t part[2];
    const json_t *file = json_object_get(j, "file"), *place = json_object_get(j, "at");
    if (!numbers(json_object_get(j, "from"), t->ndim, 0, b.from) ||
        !numbers(json_object_get(j, "size"), t->ndim, 1, b.size) ||
        !numbers(json_object_get(j, "part"), 2, 0, part) || !json_is_integer(file) ||
        !json_is_integer(place))
        return false;
    int64_t which = json_integer_value(file), at = json_integer_value(place);
    for (int d = 0; d < t->ndim; d++) {
        b.dim[d] = t->dim[d];
        if (b.from[d] >= b.dim[d] || b.size[d] > b.dim[d] - b.from[d])
            return false;
    }
    if (which < 0 || which >= m->files || at < 0 || part[0] >= part[1] ||
        part[1] > box_count(&b))
        return false;
    t->piece[i] = (struct shard){(int)which, b, {part[0], part[1]}, 0};
    t->at[i] = at;
    int64_t bytes = piece_bytes(t, i);
    return bytes <= m->bytes[which] - at &&
           hashes_parse(a, json_object_get(j, "xxh3"),
                        (bytes + m->block - 1) / m->block, &t->hash[i]);
}

static bool tensor_parse(struct arena *a, const char *path, const char *name,
                         const json_t *j, const struct manifest *m,
                         struct manifest_tensor *t)
{
    const json_t *dtype = json_object_get(j, "dtype"), *dim = json_object_get(j, "dim");
    const json_t *pieces = json_object_get(j, "pieces");
    *t = (struct manifest_tensor){.name = arena_copy(a, name, strlen(name)),
                                  .ndim = (int)MIN(json_array_size(dim), BOX_DIMS + 1),
                                  .pieces = (int64_t)json_array_size(pieces)};
    bool ok = json_is_string(dtype) && t->ndim >= 1 && t->ndim <= BOX_DIMS &&
              t->pieces > 0 && numbers(dim, t->ndim, 1, t->dim) &&
              dtype_from_safetensors(json_string_value(dtype), &t->dtype);
    t->count = ok ? disk_count(t->ndim, t->dim) : -1;
    if (t->count < 0 || t->count > INT64_MAX / 16)
        return fail("checkpoint: %s is damaged: tensor '%s' lacks a dtype, dim or "
                    "pieces of the right type", path, name);
    t->piece = NEW(a, struct shard, t->pieces);
    t->at = NEW(a, int64_t, t->pieces);
    t->hash = NEW(a, const uint64_t *, t->pieces);
    for (int64_t i = 0; i < t->pieces; i++)
        if (!piece_parse(a, json_array_get(pieces, (size_t)i), m, t, i))
            return fail("checkpoint: %s is damaged: tensor '%s': piece %" PRId64 " has "
                        "a place, box, part or hashes that cannot be", path, name, i);
    return true;
}

static bool all_parse(struct arena *a, const char *path, json_t *all,
                      struct manifest *m)
{
    const json_t *files = json_object_get(all, "files");
    json_t *tensors = json_object_get(all, "tensors"), *value;
    const char *name;
    m->step = json_integer_value(json_object_get(all, "step"));
    m->block = json_integer_value(json_object_get(all, "block"));
    m->files = (int64_t)json_array_size(files);
    m->bytes = NEW(a, int64_t, m->files + 1);
    if (!json_is_integer(json_object_get(all, "step")) || m->step < 0 ||
        m->block < BLOCK_LEAST || m->block > BLOCK_MOST || m->files < 1 ||
        m->files > INT32_MAX || !numbers(files, m->files, 0, m->bytes) ||
        !json_is_object(json_object_get(all, "state")) || !json_is_object(tensors))
        return fail("checkpoint: %s is damaged: step, state, block, files or tensors "
                    "is missing", path);
    char *meta = json_dumps(json_object_get(all, "state"), JSON_COMPACT);
    m->meta = arena_copy(a, meta, strlen(meta));
    free(meta);
    m->tensor = NEW(a, struct manifest_tensor, json_object_size(tensors) + 1);
    json_object_foreach(tensors, name, value)
        if (!tensor_parse(a, path, name, value, m, &m->tensor[m->tensors++]))
            return false;
    qsort(m->tensor, (size_t)m->tensors, sizeof *m->tensor, by_name);
    return manifest_check(path, m);
}

/* The text ends in the hash of all before it. */
static const char seal[] = ", \"manifest\": \"";
enum { SEAL = sizeof seal - 1 + HASH_DIGITS + 2 };      /* bytes, to the brace */

static char *sealed(struct arena *a, const char *text)
{
    int size = (int)strlen(text) - 1;   /* the brace comes after the seal */
    return arena_text(a, "%.*s%s%016" PRIx64 "\"}", size, text, seal,
                      XXH3_64bits(text, (size_t)size));
}

static bool seal_check(const char *path, struct bytes text)
{
    const char *end = text.at + MAX(text.size - SEAL, 0);
    uint64_t is;
    if (text.size < SEAL || memcmp(end, seal, sizeof seal - 1) ||
        !hash_parse(end + sizeof seal - 1, &is) ||
        memcmp(end + SEAL - 2, "\"}", 2))
        return fail("checkpoint: %s is damaged: it does not end in its own hash", path);
    return XXH3_64bits(text.at, (size_t)(text.size - SEAL)) == is ||
           fail("checkpoint: %s is damaged: it differs from its own hash", path);
}

bool manifest_parse(struct arena *a, const char *path, struct bytes text,
                    struct manifest *out)
{
    json_error_t error;
    *out = (struct manifest){0};
    if (!seal_check(path, text))
        return false;
    json_t *all =
        json_loadb(text.at, (size_t)text.size, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(all)) {
        json_decref(all);
        return fail("checkpoint: %s is damaged: %s", path,
                    *error.text ? error.text : "it is no object");
    }
    bool ok = all_parse(a, path, all, out);
    json_decref(all);
    return ok;
}

const struct manifest_tensor *manifest_find(const struct manifest *m, const char *name)
{
    struct manifest_tensor key = {.name = name};
    return bsearch(&key, m->tensor, (size_t)m->tensors, sizeof *m->tensor, by_name);
}

/* ---- writing ---- */

struct content { struct arena *arena; json_t *pieces; int64_t bytes; };

struct content *content_make(struct arena *a)
{
    struct content *c = NEW(a, struct content, 1);
    *c = (struct content){a, json_array(), 0};
    return c;
}

static json_t *numbers_json(const int64_t *from, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_integer(from[i]));
    return list;
}

void content_add(struct content *c, const char *name, enum dtype dtype,
                 const struct box *box, struct stretch part, const uint64_t *hash,
                 int64_t blocks)
{
    struct arena a = arena_make("hashes");
    char *digits = arena_push(&a, (size_t)(blocks * HASH_DIGITS) + 1);
    for (int64_t i = 0; i < blocks; i++)
        snprintf(digits + i * HASH_DIGITS, HASH_DIGITS + 1, "%016" PRIx64, hash[i]);
    const int64_t ends[] = {part.from, part.to};
    json_array_append_new(c->pieces, json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:o, s:I, s:s}", "tensor", name, "dtype",
        dtype_safetensors(dtype), "dim", numbers_json(box->dim, box->ndim), "from",
        numbers_json(box->from, box->ndim), "size", numbers_json(box->size, box->ndim),
        "part", numbers_json(ends, 2), "at", (json_int_t)c->bytes, "xxh3", digits));
    c->bytes += (part.to - part.from) * dtype_bytes(dtype);
    arena_free(&a);
}

char *content_text(struct content *c)
{
    json_t *all = json_pack("{s:I, s:o}", "bytes", (json_int_t)c->bytes, "pieces",
                            c->pieces);
    char *text = json_dumps(all, JSON_COMPACT);
    char *copy = arena_copy(c->arena, text, strlen(text));
    free(text);
    json_decref(all);
    return copy;
}

/* Moves the pieces of a file to their tensors. */
static void content_sort(json_t *content, int64_t file, json_t *tensors)
{
    json_t *piece;
    size_t i;
    json_array_foreach(json_object_get(content, "pieces"), i, piece) {
        const char *name = json_string_value(json_object_get(piece, "tensor"));
        json_t *t = json_object_get(tensors, name);
        if (!t) {
            t = json_pack("{s:O, s:O, s:[]}", "dtype", json_object_get(piece, "dtype"),
                          "dim", json_object_get(piece, "dim"), "pieces");
            json_object_set_new(tensors, name, t);
        }
        REQUIRE(json_equal(json_object_get(t, "dim"), json_object_get(piece, "dim")));
        json_object_set_new(piece, "file", json_integer(file));
        json_array_append(json_object_get(t, "pieces"), piece);
        json_object_del(piece, "dtype");
        json_object_del(piece, "dim");
        json_object_del(piece, "tensor");
    }
}

bool manifest_text(struct arena *a, const char *path, int64_t step, const char *meta,
                   int64_t block, char *const *content, int64_t files, char **out)
{
    json_t *state = json_loads(meta, 0, NULL);
    REQUIRE(json_is_object(state));
    json_t *tensors = json_object(), *bytes = json_array();
    for (int64_t i = 0; i < files; i++) {
        json_t *one = json_loads(content[i], 0, NULL);
        REQUIRE(one);
        json_array_append(bytes, json_object_get(one, "bytes"));
        content_sort(one, i, tensors);
        json_decref(one);
    }
    json_t *all = json_pack("{s:I, s:o, s:I, s:o, s:o}", "step", (json_int_t)step,
                            "state", state, "block", (json_int_t)block, "files", bytes,
                            "tensors", tensors);
    char *text = json_dumps(all, 0);
    json_decref(all);
    *out = sealed(a, text);
    free(text);
    struct manifest m;                  /* what is written can be read */
    return manifest_parse(a, path, (struct bytes){*out, (int64_t)strlen(*out)}, &m);
}
