/* hf.c - the weight files of a model folder are opened, checked and read. */
#include "checkpoint/hf_parts.h"

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/strips.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

const char single_name[] = "model.safetensors";
const char index_name[] = "model.safetensors.index.json";
const char head_name[] = "lm_head.weight";
const char config_name[] = "config.json";
static const char table_name[] = "model.language_model.embed_tokens.weight";
enum { INDEX_MOST = 256 << 20, NAMES_SHOWN = 5 };

/* ---- reading ---- */

bool is_weights(const char *name)
{
    return text_ends(name, ".safetensors") || !strcmp(name, index_name);
}

bool hf_has_weights(const char *folder)
{
    struct arena a = arena_make("path");
    bool has = file_exists(path_join(&a, folder, single_name)) ||
               file_exists(path_join(&a, folder, index_name));
    arena_free(&a);
    return has;
}

bool hf_has_torch_weights(const char *folder)
{
    struct arena a = arena_make("names");
    char **name;
    int64_t n = 0;
    bool has = false;
    if (folder_exists(folder) && !folder_list(&a, folder, &name, &n))
        fail_clear();                   /* whoever reads the folder says why */
    for (int64_t i = 0; i < n; i++)
        has |= text_starts(name[i], "pytorch_model") && text_ends(name[i], ".bin");
    arena_free(&a);
    return has;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_name(const void *a, const void *b)
{
    const struct disk_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The file names of the index, each once, sorted. */
static bool index_read(struct arena *a, const char *path, char ***names, int *count)
{
    struct bytes text;
    json_error_t error;
    if (!file_read(a, path, INDEX_MOST, &text))
        return false;
    json_t *all = json_loadb(text.at, (size_t)text.size, 0, &error), *value;
    json_t *map = json_object_get(all, "weight_map");
    const char *key;
    bool ok = json_is_object(map) ||
              fail("checkpoint: %s: %s", path,
                   *error.text ? error.text : "weight_map is missing");
    *names = NEW(a, char *, json_object_size(map) + 1);
    *count = 0;
    json_object_foreach(map, key, value) {
        if (ok && (!json_is_string(value) || strchr(json_string_value(value), '/')))
            ok = fail("checkpoint: %s: tensor '%s' names no file of this folder", path,
                      key);
        if (ok)
            (*names)[(*count)++] =
                arena_copy(a, json_string_value(value), json_string_length(value));
    }
    json_decref(all);
    qsort(*names, (size_t)*count, sizeof **names, by_text);
    int n = 0;
    for (int i = 0; i < *count; i++)
        if (n == 0 || strcmp((*names)[n - 1], (*names)[i]))
            (*names)[n++] = (*names)[i];
    *count = n;
    return ok;
}

static bool files_open(struct arena *a, struct hf_folder *f)
{
    char *one[] = {arena_copy(a, single_name, strlen(single_name))}, **name = one;
    char *index = path_join(a, f->path, index_name);
    int count = 1;
    if (!file_exists(path_join(a, f->path, single_name)) && file_exists(index) &&
        !index_read(a, index, &name, &count))
        return false;
    f->file = NEW(a, struct safetensors, count + 1);
    for (int i = 0; i < count; i++, f->nfile++)
        if (!safetensors_open(a, path_join(a, f->path, name[i]), &f->file[i]))
            return false;
    for (int i = 0; i < count; i++)
        f->ntensor += f->file[i].count;
    f->tensor = NEW(a, const struct disk_tensor *, f->ntensor + 1);
    int64_t n = 0;
    for (int i = 0; i < count; i++)
        for (int64_t k = 0; k < f->file[i].count; k++)
            f->tensor[n++] = &f->file[i].tensor[k];
    qsort(f->tensor, (size_t)n, sizeof *f->tensor, by_name);
    for (int64_t i = 1; i < n; i++)
        if (!strcmp(f->tensor[i - 1]->name, f->tensor[i]->name))
            return fail("checkpoint: %s: tensor '%s' is in two files", f->path,
                        f->tensor[i]->name);
    return true;
}

/* ---- the layout of experts ---- */

bool swapped_in(enum expert_layout e, const struct param *p)
{
    return p->transposed && e != EXPERTS_TRANSFORMERS;
}

struct disk_tensor tensor_in(enum expert_layout e, const struct param *p)
{
    struct disk_tensor t = {.name = p->name, .ndim = p->ndim,
                            .count = param_disk_count(p)};
    memcpy(t.dim, p->dim, sizeof *p->dim * (size_t)p->ndim);
    if (p->transposed && !swapped_in(e, p)) {
        t.dim[1] = p->dim[2];
        t.dim[2] = p->dim[1];
    }
    return t;
}

bool same_shape(const struct disk_tensor *x, const struct disk_tensor *y)
{
    return x->ndim == y->ndim && !memcmp(x->dim, y->dim,
                                         sizeof *x->dim * (size_t)x->ndim);
}

static bool mixed_fail(const struct hf_folder *f, const struct disk_tensor *x,
                       const struct disk_tensor *y)
{
    struct arena a = arena_make("message");
    fail("checkpoint: %s: '%s' is %s and '%s' is %s: not of one layout; expected [E, "
         "D, 2F] with [E, F, D] (released) or [E, 2F, D] with [E, D, F] (transformers)",
         f->path, x->name, disk_text(&a, disk_type(x), x->ndim, x->dim), y->name,
         disk_text(&a, disk_type(y), y->ndim, y->dim));
    arena_free(&a);
    return false;
}

/* One of a pair may be square, as both layouts have it: the other one tells. */
static bool layout_find(struct hf_folder *f, const struct param *p, int64_t count)
{
    const struct disk_tensor *first = NULL;     /* the one that told */
    for (int64_t i = 0; i < count; i++) {
        const struct disk_tensor *t = p[i].transposed ? hf_find(f, p[i].name) : NULL;
        if (!t)
            continue;
        struct disk_tensor released = tensor_in(EXPERTS_RELEASED, &p[i]);
        struct disk_tensor swapped = tensor_in(EXPERTS_TRANSFORMERS, &p[i]);
        bool r = same_shape(t, &released), s = same_shape(t, &swapped);
        enum expert_layout is = r ? EXPERTS_RELEASED : EXPERTS_TRANSFORMERS;
        if (r == s)                     /* neither: hf_check says what is expected */
            continue;
        if (first && f->experts != is)
            return mixed_fail(f, first, t);
        f->experts = is;
        first = t;
    }
    return true;
}

bool hf_open(struct arena *a, const char *folder, const struct param *p, int64_t count,
             struct hf_folder *out)
{
    *out = (struct hf_folder){.path = arena_copy(a, folder, strlen(folder))};
    if (files_open(a, out) && layout_find(out, p, count))
        return true;
    hf_close(out);
    return fail_kind(FAULT_CHECKPOINT);
}

void hf_close(struct hf_folder *f)
{
    for (int i = 0; i < f->nfile; i++)
        safetensors_close(&f->file[i]);
    f->nfile = 0;
}

const struct safetensors *hf_file_of(const struct hf_folder *f,
                                     const struct disk_tensor *t)
{
    for (int i = 0; i < f->nfile; i++)
        for (int64_t k = 0; k < f->file[i].count; k++)
            if (&f->file[i].tensor[k] == t)
                return &f->file[i];
    BUG("'%s' is no tensor of %s", t->name, f->path);
}

const struct disk_tensor *hf_find(const struct hf_folder *f, const char *name)
{
    struct disk_tensor key = {.name = name};
    const struct disk_tensor *want = &key, **found =
        bsearch(&want, f->tensor, (size_t)f->ntensor, sizeof *f->tensor, by_name);
    return found ? *found : NULL;
}

const char **names_sorted(struct arena *a, const struct param *p, int64_t count)
{
    const char **name = NEW(a, const char *, count + 1);
    for (int64_t i = 0; i < count; i++)
        name[i] = p[i].name;
    qsort(name, (size_t)count, sizeof *name, by_text);
    return name;
}

bool name_in(const char *const *sorted, int64_t count, const char *name)
{
    return bsearch(&name, sorted, (size_t)count, sizeof *sorted, by_text) != NULL;
}

bool floating(enum dtype d)
{
    return d == DTYPE_F32 || d == DTYPE_BF16 || d == DTYPE_F16;
}

static bool shape_check(const struct hf_folder *f, const struct disk_tensor *t,
                        const struct param *p)
{
    struct disk_tensor want = tensor_in(f->experts, p);
    if (same_shape(t, &want) && floating(t->dtype))
        return true;
    struct arena a = arena_make("message");
    fail("checkpoint: %s: tensor '%s' is %s, the config wants %s of a floating type",
         f->path, t->name, disk_text(&a, disk_type(t), t->ndim, t->dim),
         disk_text(&a, disk_type(&want), want.ndim, want.dim));
    arena_free(&a);
    return false;
}

static bool has_param(const struct param *p, int64_t count, const char *name)
{
    for (int64_t i = 0; i < count; i++)
        if (!strcmp(p[i].name, name))
            return true;
    return false;
}

/* A tied head is no parameter of the model, but files may repeat the table under it. */
static bool tied_check(const struct hf_folder *f, const struct param *p, int64_t count)
{
    const struct disk_tensor *head = hf_find(f, head_name);
    const struct disk_tensor *table = hf_find(f, table_name);
    if (!head || !table || has_param(p, count, head_name))
        return true;
    bool same = head->dtype == table->dtype && head->ndim == table->ndim &&
                head->bytes == table->bytes &&
                !memcmp(head->dim, table->dim, sizeof head->dim) &&
                !memcmp(head->data, table->data, (size_t)head->bytes);
    return same || fail("checkpoint: %s: tie_word_embeddings is true, but %s differs "
                        "from %s; expected the same values, or false", f->path,
                        head_name, table_name);
}

/* Tensors in the files that no parameter reads: a wrong config shows here. */
static void unused_tell(const struct hf_folder *f, const struct param *p, int64_t count)
{
    struct arena a = arena_make("message");
    struct text names = text_make(&a);
    const char **known = names_sorted(&a, p, count);
    int64_t unused = 0;
    for (int64_t i = 0; i < f->ntensor; i++)
        if (strcmp(f->tensor[i]->name, head_name) &&
            !name_in(known, count, f->tensor[i]->name) && ++unused <= NAMES_SHOWN)
            text_add(&names, "%s%s", unused > 1 ? ", " : "", f->tensor[i]->name);
    if (unused)
        log_warn("checkpoint", "%s: %" PRId64 " tensor(s) are not this model's: %s%s",
                 f->path, unused, names.at, unused > NAMES_SHOWN ? ", ..." : "");
    arena_free(&a);
}

bool hf_check(const struct hf_folder *f, const struct param *p, int64_t count)
{
    struct arena a = arena_make("message");
    struct text missing = text_make(&a);
    int64_t lacks = 0;
    bool ok = true;
    for (int64_t i = 0; i < count && ok; i++) {
        const struct disk_tensor *t = hf_find(f, p[i].name);
        ok = !t || shape_check(f, t, &p[i]);
        if (!t && ++lacks <= NAMES_SHOWN)
            text_add(&missing, "%s%s", lacks > 1 ? ", " : "", p[i].name);
    }
    if (ok && lacks)
        ok = fail("checkpoint: %s lacks %" PRId64 " of %" PRId64 " tensors: %s%s",
                  f->path, lacks, count, missing.at,
                  lacks > NAMES_SHOWN ? ", ..." : "");
    arena_free(&a);
    ok = ok && tied_check(f, p, count);
    if (ok)
        unused_tell(f, p, count);
    return ok || fail_kind(FAULT_CHECKPOINT);
}

/* The file holds elements at any address. */
void disk_load(const struct disk_tensor *t, int64_t from, int64_t count, float *to)
{
    enum { CHUNK = 2048 };
    int64_t size = dtype_bytes(t->dtype);
    _Alignas(8) char raw[CHUNK * sizeof(float)];
    for (int64_t at = 0; at < count; at += CHUNK) {
        int64_t n = MIN(count - at, CHUNK);
        memcpy(raw, (const char *)t->data + (from + at) * size, (size_t)(n * size));
        dtype_to_f32(t->dtype, raw, to + at, n);
    }
}

static void panel_load(const struct disk_tensor *t, const struct panel *p, float *to)
{
    const struct strip *s = &p->first;
    struct tile tile;
    if (s->step == 1) {
        disk_load(t, s->disk, s->count, to + s->memory);
        return;
    }
    for (int64_t at = 0; at < s->count; at += PANEL_COLUMNS) {
        int64_t n = MIN(s->count - at, PANEL_COLUMNS);
        for (int64_t r = 0; r < p->rows; r++)
            disk_load(t, s->disk + r * p->stride + at, n, tile.at[r]);
        tile_to_memory(&tile, p->rows, n, to + s->memory + at * s->step, s->step);
    }
}

bool hf_load(const struct hf_folder *f, const struct param *p, struct stretch part,
             float *to)
{
    const struct disk_tensor *t = hf_find(f, p->name);
    if (!t) {
        fail("checkpoint: %s has no tensor '%s'", f->path, p->name);
        return fail_kind(FAULT_CHECKPOINT);
    }
    if (!shape_check(f, t, p))
        return fail_kind(FAULT_CHECKPOINT);
    struct strips strips = strips_of(p, swapped_in(f->experts, p), part);
    for (struct panel panel; strips_panel(&strips, &panel);)
        panel_load(t, &panel, to);
    return true;
}
