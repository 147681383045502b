/* hf.c - the weight files of a model folder, in and out, parameter by parameter. */
#include "checkpoint/hf.h"

#include "base/log.h"
#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

static const char single[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";
static const char head_name[] = "lm_head.weight";
static const char table_name[] = "model.language_model.embed_tokens.weight";
enum { INDEX_MOST = 256 << 20, NAMES_SHOWN = 5 };

/* ---- reading ---- */

bool hf_has_weights(const char *folder)
{
    struct arena a = arena_make("path");
    bool has = file_exists(path_join(&a, folder, single)) ||
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
    char *one[] = {arena_copy(a, single, strlen(single))}, **name = one;
    char *index = path_join(a, f->path, index_name);
    int count = 1;
    if (!file_exists(path_join(a, f->path, single)) && file_exists(index) &&
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

bool hf_open(struct arena *a, const char *folder, struct hf_folder *out)
{
    *out = (struct hf_folder){.path = arena_copy(a, folder, strlen(folder))};
    if (files_open(a, out))
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

const struct disk_tensor *hf_find(const struct hf_folder *f, const char *name)
{
    struct disk_tensor key = {.name = name};
    const struct disk_tensor *want = &key, **found =
        bsearch(&want, f->tensor, (size_t)f->ntensor, sizeof *f->tensor, by_name);
    return found ? *found : NULL;
}

/* The names of the parameters, for name_in. */
static const char **names_sorted(struct arena *a, const struct param *p, int64_t count)
{
    const char **name = NEW(a, const char *, count + 1);
    for (int64_t i = 0; i < count; i++)
        name[i] = p[i].name;
    qsort(name, (size_t)count, sizeof *name, by_text);
    return name;
}

static bool name_in(const char *const *sorted, int64_t count, const char *name)
{
    return bsearch(&name, sorted, (size_t)count, sizeof *sorted, by_text) != NULL;
}

static bool floating(enum dtype d)
{
    return d == DTYPE_F32 || d == DTYPE_BF16 || d == DTYPE_F16;
}

static bool shape_check(const struct hf_folder *f, const struct disk_tensor *t,
                        const struct param *p)
{
    if (t->ndim == p->ndim &&
        !memcmp(t->dim, p->dim, sizeof *t->dim * (size_t)t->ndim) && floating(t->dtype))
        return true;
    struct arena a = arena_make("message");
    fail("checkpoint: %s: tensor '%s' is %s, the config wants %s of a floating type",
         f->path, t->name, disk_text(&a, t->dtype, t->ndim, t->dim),
         disk_text(&a, DTYPE_F32, p->ndim, p->dim));
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
        log_warn("checkpoint", "%s: %" PRId64 " tensors are not this model's: %s%s",
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

/* to[e][j][i] = from[e][i][j] for `batch` matrices of rows x cols */
static void transpose(const float *from, float *to, int64_t batch, int64_t rows,
                      int64_t cols)
{
    enum { TILE = 32 };
    for (int64_t e = 0; e < batch; e++, from += rows * cols, to += rows * cols)
        for (int64_t r = 0; r < rows; r += TILE)
            for (int64_t c = 0; c < cols; c += TILE)
                for (int64_t i = r; i < MIN(r + TILE, rows); i++)
                    for (int64_t j = c; j < MIN(c + TILE, cols); j++)
                        to[j * rows + i] = from[i * cols + j];
}

void param_from_disk(const struct param *p, const float *disk, float *memory)
{
    int64_t count = param_disk_count(p);
    if (!p->transposed) {
        memcpy(memory, disk, sizeof *disk * (size_t)count);
        return;
    }
    int64_t rows = p->dim[p->ndim - 2], cols = p->dim[p->ndim - 1];
    transpose(disk, memory, count / (rows * cols), rows, cols);
}

void param_to_disk(const struct param *p, const float *memory, float *disk)
{
    int64_t count = param_disk_count(p);
    if (!p->transposed) {
        memcpy(disk, memory, sizeof *disk * (size_t)count);
        return;
    }
    int64_t rows = p->dim[p->ndim - 2], cols = p->dim[p->ndim - 1];
    transpose(memory, disk, count / (rows * cols), cols, rows);
}

bool hf_load(const struct hf_folder *f, const struct param *p, float *to)
{
    const struct disk_tensor *t = hf_find(f, p->name);
    if (!t) {
        fail("checkpoint: %s has no tensor '%s'", f->path, p->name);
        return fail_kind(FAULT_CHECKPOINT);
    }
    if (!shape_check(f, t, p))
        return fail_kind(FAULT_CHECKPOINT);
    struct arena a = arena_make("tensor");
    const void *data = t->data;
    if ((uintptr_t)data % (uintptr_t)dtype_bytes(t->dtype))
        data = arena_copy(&a, data, (size_t)t->bytes);          /* aligned */
    float *disk = p->transposed ? NEW(&a, float, t->count) : to;
    dtype_to_f32(t->dtype, data, disk, t->count);
    if (p->transposed)
        param_from_disk(p, disk, to);
    arena_free(&a);
    return true;
}

/* ---- writing ---- */

struct saved {                          /* one tensor of the new folder */
    struct disk_tensor head;
    int64_t param;                      /* -1: carried through from the old folder */
    int shard;
};

static int by_saved_name(const void *a, const void *b)
{
    const struct saved *x = a, *y = b;
    return strcmp(x->head.name, y->head.name);
}

/* What is written: the model's parameters and the old folder's unknown tensors, but no
 * head that a tied model would then disagree with. */
static int64_t saved_list(struct arena *a, const struct hf_folder *old,
                          const struct hf_weights *w, enum dtype dtype,
                          struct saved **out)
{
    struct saved *s = *out = NEW(a, struct saved, w->count + old->ntensor + 1);
    const char **known = names_sorted(a, w->param, w->count);
    int64_t n = 0;
    for (int64_t i = 0; i < w->count; i++) {
        const struct param *p = &w->param[i];
        const struct disk_tensor *t = old->ntensor ? hf_find(old, p->name) : NULL;
        bool keep = t && !w->retype && floating(t->dtype);
        struct disk_tensor head = {.name = p->name, .dtype = keep ? t->dtype : dtype,
                                   .ndim = p->ndim, .count = param_disk_count(p)};
        memcpy(head.dim, p->dim, sizeof *p->dim * (size_t)p->ndim);
        head.bytes = head.count * dtype_bytes(head.dtype);
        s[n++] = (struct saved){head, i, 0};
    }
    for (int64_t i = 0; i < old->ntensor; i++)
        if (strcmp(old->tensor[i]->name, head_name) &&
            !name_in(known, w->count, old->tensor[i]->name))
            s[n++] = (struct saved){*old->tensor[i], -1, 0};
    qsort(s, (size_t)n, sizeof *s, by_saved_name);
    return n;
}

static int shards_assign(struct saved *s, int64_t count, int64_t most)
{
    int shard = 0;
    int64_t filled = 0;
    for (int64_t i = 0; i < count; i++) {
        if (filled && filled + s[i].head.bytes > most) {
            shard++;
            filled = 0;
        }
        filled += s[i].head.bytes;
        s[i].shard = shard;
    }
    return shard + 1;
}

static bool tensor_save(struct safetensors_writer *w, const struct saved *s,
                        const struct hf_weights *weights)
{
    if (s->param < 0)
        return safetensors_write(w, s->head.data, s->head.bytes);
    struct arena a = arena_make("tensor");
    const struct param *p = &weights->param[s->param];
    float *memory = NEW(&a, float, s->head.count), *disk = memory;
    bool ok = weights->get(weights->arg, s->param, memory);
    if (ok && p->transposed) {
        disk = NEW(&a, float, s->head.count);
        param_to_disk(p, memory, disk);
    }
    void *bytes = disk;
    if (ok && s->head.dtype != DTYPE_F32) {
        bytes = arena_push(&a, (size_t)s->head.bytes);
        dtype_from_f32(s->head.dtype, disk, bytes, s->head.count);
    }
    ok = ok && safetensors_write(w, bytes, s->head.bytes);
    arena_free(&a);
    return ok;
}

static char *shard_name(struct arena *a, int shard, int shards)
{
    return shards == 1 ? arena_copy(a, single, strlen(single))
                       : arena_text(a, "model-%05d-of-%05d.safetensors", shard + 1,
                                    shards);
}

static bool shard_save(struct arena *a, const char *path, const struct saved *s,
                       int64_t count, const struct hf_weights *weights)
{
    static const char *const meta[] = {"format", "pt"};
    struct safetensors_writer *w;
    struct disk_tensor *head = NEW(a, struct disk_tensor, count);
    for (int64_t i = 0; i < count; i++)
        head[i] = s[i].head;
    if (!safetensors_create(a, path, head, count, meta, 1, &w))
        return false;
    for (int64_t i = 0; i < count; i++)
        if (!tensor_save(w, &s[i], weights)) {
            safetensors_abandon(w);
            return false;
        }
    return safetensors_finish(w);
}

static bool index_save(struct arena *a, const char *folder, const struct saved *s,
                       int64_t count, int shards)
{
    json_t *map = json_object();
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) {
        json_object_set_new(map, s[i].head.name,
                            json_string(shard_name(a, s[i].shard, shards)));
        total += s[i].head.bytes;
    }
    json_t *all = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                            (json_int_t)total, "weight_map", map);
    char *text = json_dumps(all, JSON_INDENT(2));
    json_decref(all);
    bool ok = file_replace(path_join(a, folder, index_name), text,
                           (int64_t)strlen(text));
    free(text);
    return ok;
}

static bool is_weights(const char *name)
{
    return text_ends(name, ".safetensors") || !strcmp(name, index_name);
}

static bool others_copy(struct arena *a, const char *from, const char *to)
{
    char **name;
    int64_t count;
    if (!folder_list(a, from, &name, &count))
        return false;
    for (int64_t i = 0; i < count; i++) {
        char *path = path_join(a, from, name[i]);
        if (!is_weights(name[i]) && !folder_exists(path) &&
            !file_copy(path, path_join(a, to, name[i])))
            return false;
    }
    return true;
}

static bool folder_save(struct arena *a, const char *part, const char *from,
                        const struct hf_folder *old, const struct hf_weights *weights,
                        enum dtype dtype, int64_t shard_bytes)
{
    struct saved *s;
    int64_t count = saved_list(a, old, weights, dtype, &s), first = 0;
    int shards = shards_assign(s, count, shard_bytes);
    if (!folder_remove(part) || !folder_make(part) || !others_copy(a, from, part))
        return false;
    for (int k = 0; k < shards; k++) {
        int64_t next = first;
        while (next < count && s[next].shard == k)
            next++;
        if (!shard_save(a, path_join(a, part, shard_name(a, k, shards)), &s[first],
                        next - first, weights))
            return false;
        first = next;
    }
    return (shards == 1 || index_save(a, part, s, count, shards)) && folder_sync(part);
}

/* May `folder` be replaced?  Not where it holds something else than a model. */
static bool target_check(struct arena *a, const char *folder)
{
    char **name;
    int64_t count;
    if (!folder_exists(folder) || file_exists(path_join(a, folder, "config.json")))
        return true;
    if (!folder_list(a, folder, &name, &count))
        return false;
    return count == 0 || fail("checkpoint: %s is there and no model folder (it has no "
                              "config.json); expected a new name", folder);
}

bool hf_save(const char *folder, const char *from, const struct hf_weights *weights,
             enum dtype dtype, int64_t shard_bytes)
{
    struct arena a = arena_make("checkpoint");
    struct hf_folder old = {0};
    size_t size = strlen(folder);
    while (size > 1 && folder[size - 1] == '/')
        size--;
    char *path = arena_copy(&a, folder, size), *part = arena_text(&a, "%s.part", path);
    bool ok = target_check(&a, path) &&
              (!hf_has_weights(from) || hf_open(&a, from, &old));
    if (ok && !folder_save(&a, part, from, &old, weights, dtype, shard_bytes)) {
        struct failure why;             /* a full disk keeps nothing of it */
        fail_take(&why);
        if (!folder_remove(part))
            log_warn("checkpoint", "%s", fail_message());
        ok = fail_raise(&why);
    }
    hf_close(&old);
    ok = ok && folder_replace(part, path);
    arena_free(&a);
    return ok || fail_kind(FAULT_CHECKPOINT);
}
