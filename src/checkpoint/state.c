/* state.c - saves and finds training states; what the tensors mean it does not know. */
#include "checkpoint/state.h"

#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <xxhash.h>

static const char weights_name[] = "state.safetensors";
static const char manifest_name[] = "manifest.json";
enum { MANIFEST_MOST = 256 << 20 };

static uint64_t tensor_hash(const struct disk_tensor *t)
{
    return XXH3_64bits(t->data, (size_t)t->bytes);
}

static json_t *hash_json(uint64_t hash)
{
    return json_sprintf("%016" PRIx64, hash);
}

static bool hash_of(const json_t *j, uint64_t *out)
{
    const char *text = json_string_value(j);
    return text && strlen(text) == 16 && sscanf(text, "%16" SCNx64, out) == 1;
}

static char *step_path(struct arena *a, const char *root, int64_t step)
{
    return arena_text(a, "%s/step-%" PRId64, root, step);
}

/* ---- manifest ---- */

/* Of everything in it but this hash itself. */
static uint64_t manifest_hash(const json_t *all)
{
    char *text = json_dumps(all, JSON_COMPACT | JSON_SORT_KEYS);
    uint64_t hash = XXH3_64bits(text, strlen(text));
    free(text);
    return hash;
}

static bool manifest_write(const char *path, int64_t step,
                           const struct state_source *from, const uint64_t *hash,
                           const char *meta, int64_t bytes)
{
    json_t *numbers = json_loads(meta, 0, NULL);
    REQUIRE(json_is_object(numbers));
    json_t *list = json_object();
    for (int64_t i = 0; i < from->count; i++)
        json_object_set_new(list, from->tensor[i].name, hash_json(hash[i]));
    json_t *all = json_pack("{s:I, s:o, s:I, s:o}", "step", (json_int_t)step, "state",
                            numbers, "bytes", (json_int_t)bytes, "xxh3", list);
    json_object_set_new(all, "manifest", hash_json(manifest_hash(all)));
    char *text = json_dumps(all, JSON_INDENT(1));
    json_decref(all);
    bool ok = file_replace(path, text, (int64_t)strlen(text));
    free(text);
    return ok;
}

static bool manifest_sound(json_t *all, const char *path, int64_t step)
{
    uint64_t hash;
    if (!hash_of(json_object_get(all, "manifest"), &hash) ||
        !json_is_integer(json_object_get(all, "step")) ||
        !json_is_integer(json_object_get(all, "bytes")) ||
        !json_is_object(json_object_get(all, "state")) ||
        !json_is_object(json_object_get(all, "xxh3")))
        return fail("checkpoint: %s is damaged: step, bytes, state, xxh3 or manifest "
                    "is missing", path);
    json_object_del(all, "manifest");
    if (manifest_hash(all) != hash)
        return fail("checkpoint: %s is damaged: it differs from its own hash", path);
    int64_t is = json_integer_value(json_object_get(all, "step"));
    return is == step || fail("checkpoint: %s is of step %" PRId64 ", its folder says %"
                              PRId64, path, is, step);
}

static bool manifest_read(struct arena *a, const char *folder, int64_t step,
                          json_t **out)
{
    struct bytes text;
    json_error_t error;
    char *path = path_join(a, folder, manifest_name);
    if (!file_read(a, path, MANIFEST_MOST, &text))
        return false;
    *out = json_loadb(text.at, (size_t)text.size, JSON_REJECT_DUPLICATES, &error);
    if (!*out)
        return fail("checkpoint: %s is damaged: %s", path, error.text);
    if (manifest_sound(*out, path, step))
        return true;
    json_decref(*out);
    return false;
}

/* Opens the manifest of a checkpoint whose files have the sizes it says. */
static bool complete(struct arena *a, const char *folder, int64_t step, json_t **out)
{
    if (!manifest_read(a, folder, step, out))
        return false;
    int64_t want = json_integer_value(json_object_get(*out, "bytes"));
    int64_t have = file_size(path_join(a, folder, weights_name));
    if (want == have)
        return true;
    json_decref(*out);
    if (have < 0)
        return fail("checkpoint: %s/%s is missing", folder, weights_name);
    return fail("checkpoint: %s/%s is %" PRId64 " bytes, its manifest says %" PRId64,
                folder, weights_name, have, want);
}

static bool is_complete(struct arena *a, const char *root, int64_t step)
{
    json_t *all;
    bool ok = complete(a, step_path(a, root, step), step, &all);
    if (ok)
        json_decref(all);
    return ok;
}

static int by_step(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The steps under root, ascending; other names are left alone. */
static bool steps_list(struct arena *a, const char *root, int64_t **step,
                       int64_t *count)
{
    char **name;
    int64_t n = 0;
    *count = 0;
    if (folder_exists(root) && !folder_list(a, root, &name, &n))
        return false;
    *step = NEW(a, int64_t, n + 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t at;
        if (text_starts(name[i], "step-") && text_integer(name[i] + 5, &at) &&
            at >= 0 && !strcmp(step_path(a, root, at), path_join(a, root, name[i])))
            (*step)[(*count)++] = at;
    }
    qsort(*step, (size_t)*count, sizeof **step, by_step);
    return true;
}

/* ---- saving ---- */

static bool tensor_write(struct safetensors_writer *w, const struct state_source *from,
                         int64_t i, uint64_t *hash)
{
    struct arena a = arena_make("tensor");
    struct disk_tensor t = from->tensor[i];
    bool ok = true;
    if (from->get) {
        void *data = NEW(&a, char, t.bytes);
        ok = from->get(from->arg, i, data);
        t.data = data;
    }
    if (ok)
        *hash = tensor_hash(&t);
    ok = ok && safetensors_write(w, t.data, t.bytes);
    arena_free(&a);
    return ok;
}

static bool tensors_write(struct arena *a, const char *path,
                          const struct state_source *from, uint64_t *hash)
{
    static const char *const meta[] = {"format", "pt"};
    struct safetensors_writer *w;
    if (!safetensors_create(a, path, from->tensor, from->count, meta, 1, &w))
        return false;
    for (int64_t i = 0; i < from->count; i++)
        if (!tensor_write(w, from, i, &hash[i])) {
            safetensors_abandon(w);
            return false;
        }
    return safetensors_finish(w);
}

static bool parts_remove(struct arena *a, const char *root)
{
    char **name;
    int64_t n;
    if (!folder_list(a, root, &name, &n))
        return false;
    for (int64_t i = 0; i < n; i++)
        if (text_starts(name[i], ".step-") &&
            !folder_remove(path_join(a, root, name[i])))
            return false;
    return true;
}

/* Torn steps are not counted and stay, as evidence. */
static bool others_remove(struct arena *a, const char *root, int64_t saved, int keep)
{
    int64_t *step, count;
    if (!steps_list(a, root, &step, &count))
        return false;
    for (int64_t i = count - 1; i >= 0; i--) {
        if (step[i] == saved || !is_complete(a, root, step[i]) || --keep > 0)
            continue;
        /* Rename first: a half-removed checkpoint must not look like one. */
        char *gone = arena_text(a, "%s/.step-%" PRId64 ".part", root, step[i]);
        char *path = step_path(a, root, step[i]);
        if (rename(path, gone))
            return fail("checkpoint: remove %s: %s", path, strerror(errno));
        if (!folder_remove(gone))
            return false;
    }
    fail_clear();                       /* what is_complete() said of torn ones */
    return true;
}

static bool part_write(struct arena *a, const char *part, int64_t step,
                       const struct state_source *from, const char *meta)
{
    char *file = path_join(a, part, weights_name);
    uint64_t *hash = NEW(a, uint64_t, from->count + 1);
    return folder_make(part) && tensors_write(a, file, from, hash) &&
           manifest_write(path_join(a, part, manifest_name), step, from, hash, meta,
                          file_size(file)) &&
           folder_sync(part);
}

static bool save(struct arena *a, const char *root, int64_t step,
                 const struct state_source *from, const char *meta, int keep)
{
    char *part = arena_text(a, "%s/.step-%" PRId64 ".part", root, step);
    if (!folder_make(root) || !parts_remove(a, root))
        return false;
    if (!part_write(a, part, step, from, meta)) {
        struct failure why;             /* a full disk keeps nothing of it */
        fail_take(&why);
        if (!folder_remove(part))
            log_warn("checkpoint", "%s", fail_message());
        return fail_raise(&why);
    }
    return folder_replace(part, step_path(a, root, step)) &&
           (keep <= 0 || others_remove(a, root, step, keep));
}

bool state_save(const char *root, int64_t step, const struct state_source *from,
                const char *meta, int keep)
{
    REQUIRE(step >= 0);
    struct arena a = arena_make("checkpoint");
    bool ok = save(&a, root, step, from, meta, keep);
    arena_free(&a);
    return ok || fail_kind(FAULT_CHECKPOINT);
}

/* ---- finding and reading ---- */

static bool open_step(struct arena *a, const char *root, int64_t step,
                      struct state *out)
{
    json_t *all;
    *out = (struct state){.path = step_path(a, root, step), .step = step};
    if (!complete(a, out->path, step, &all))
        return false;
    char *meta = json_dumps(json_object_get(all, "state"), JSON_COMPACT);
    out->meta = arena_copy(a, meta, strlen(meta));
    free(meta);
    bool ok = safetensors_open(a, path_join(a, out->path, weights_name), &out->file);
    uint64_t *hash = NEW(a, uint64_t, out->file.count + 1);
    for (int64_t i = 0; ok && i < out->file.count; i++) {
        const char *name = out->file.tensor[i].name;
        ok = hash_of(json_object_get(json_object_get(all, "xxh3"), name), &hash[i]) ||
             fail("checkpoint: %s: the manifest has no hash of '%s'", out->path, name);
    }
    out->hash = hash;
    json_decref(all);
    if (!ok)
        state_close(out);
    return ok;
}

bool state_open(struct arena *a, const char *root, int64_t step, struct state *out)
{
    return open_step(a, root, step, out) || fail_kind(FAULT_CHECKPOINT);
}

static bool tensor_verify(const struct state *s, int64_t i)
{
    const struct disk_tensor *t = &s->file.tensor[i];
    uint64_t hash = tensor_hash(t);
    if (hash == s->hash[i])
        return true;
    fail("checkpoint: %s: tensor '%s' is damaged (hash %016" PRIx64 ", saved as %016"
         PRIx64 ")", s->path, t->name, hash, s->hash[i]);
    return fail_kind(FAULT_CHECKPOINT);
}

bool state_verify(const struct state *s)
{
    for (int64_t i = 0; i < s->file.count; i++)
        if (!tensor_verify(s, i))
            return false;
    return true;
}

static bool is_whole(const char *root, int64_t step)
{
    struct arena a = arena_make("checkpoint");
    struct state s;
    bool ok = state_open(&a, root, step, &s);
    if (ok) {
        ok = state_verify(&s);
        state_close(&s);
    }
    arena_free(&a);
    return ok;
}

bool state_newest(const char *root, int64_t *out)
{
    struct arena a = arena_make("checkpoint");
    int64_t *step, count;
    *out = -1;
    bool ok = steps_list(&a, root, &step, &count);
    for (int64_t i = count - 1; ok && i >= 0 && *out < 0; i--) {
        if (is_whole(root, step[i]))
            *out = step[i];
        else
            log_warn("checkpoint", "%s; it is not used", fail_message());
    }
    if (ok && count > 0 && *out < 0)
        ok = fail("checkpoint: none of the %" PRId64 " training states in %s is whole; "
                  "move them away to start again from step 1", count, root);
    arena_free(&a);
    return ok || fail_kind(FAULT_CHECKPOINT);
}

bool state_read(const struct state *s, const struct disk_tensor *want, void *to)
{
    const struct disk_tensor *t = safetensors_find(&s->file, want->name);
    if (!t)
        fail("checkpoint: %s has no tensor '%s'", s->path, want->name);
    else if (t->dtype != want->dtype || t->ndim != want->ndim ||
             memcmp(t->dim, want->dim, sizeof *t->dim * (size_t)t->ndim)) {
        struct arena a = arena_make("message");
        fail("checkpoint: %s: tensor '%s' is %s, this run needs %s (was the model "
             "changed?)", s->path, t->name, disk_text(&a, t->dtype, t->ndim, t->dim),
             disk_text(&a, want->dtype, want->ndim, want->dim));
        arena_free(&a);
    } else if (tensor_verify(s, t - s->file.tensor)) {
        memcpy(to, t->data, (size_t)t->bytes);
        return true;
    }
    return fail_kind(FAULT_CHECKPOINT);
}

void state_close(struct state *s)
{
    safetensors_close(&s->file);
}
