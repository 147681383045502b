/* hf_save.c - a model folder is written by all ranks at once, each what it stores.
 *
 * Stands alone because the layout of the files is all that the ranks agree on: sizes
 * and places follow from names, shapes and types, so nothing has to travel. */
#include "checkpoint/hf_parts.h"

#include "base/text.h"
#include "checkpoint/hf_json.h"
#include "base/json_text.h"
#include "checkpoint/strips.h"

#include <jansson.h>
#include <stdlib.h>

static const char *const meta[] = {"format", "pt"};

/* ---- what goes where ---- */

struct saved {                          /* one tensor of the new folder */
    struct disk_tensor head;
    int64_t param;                      /* -1: carried through from the old folder */
    int64_t file, at;                   /* and the byte of it where the data begin */
    const struct disk_tensor *same;     /* has its elements in this order, or NULL */
    const struct hf_folder *of;         /* whose that is */
};

struct files {                          /* the new folder's weights */
    int64_t tensors, count;
    enum expert_layout experts;
    struct saved *saved;                /* by name, and so by file */
    struct bytes *head;                 /* [count] how a file begins */
    int64_t *bytes;                     /* [count] of data behind that */
};

static int by_saved_name(const void *a, const void *b)
{
    const struct saved *x = a, *y = b;
    return strcmp(x->head.name, y->head.name);
}

static enum expert_layout layout_of(const struct hf_folder *old,
                                    const struct hf_weights *w)
{
    return w->experts ? w->experts : old->experts ? old->experts : EXPERTS_RELEASED;
}

/* The origin's tensor of this name, if its elements are in this order.  (A square one
 * has the same shape in both.) */
static const struct disk_tensor *same_of(const struct hf_weights *w,
                                         const struct param *p,
                                         enum expert_layout experts)
{
    const struct disk_tensor *t = w->origin ? hf_find(w->origin, p->name) : NULL;
    return t && swapped_in(w->origin->experts, p) == swapped_in(experts, p) ? t : NULL;
}

/* What is written: the model's parameters and the old folder's unknown tensors, but no
 * head that a tied model would then disagree with. */
static int64_t saved_list(struct arena *a, const struct hf_folder *old,
                          const struct hf_weights *w, enum dtype dtype,
                          struct saved **out)
{
    struct saved *s = *out = NEW(a, struct saved, w->count + old->ntensor + 1);
    const char **known = names_sorted(a, w->param, w->count);
    enum expert_layout experts = layout_of(old, w);
    int64_t n = 0;
    for (int64_t i = 0; i < w->count; i++) {
        const struct param *p = &w->param[i];
        const struct disk_tensor *t = old->ntensor ? hf_find(old, p->name) : NULL;
        bool keep = t && !w->retype && floating(t->dtype);
        struct disk_tensor head = tensor_in(experts, p);
        head.dtype = keep ? t->dtype : dtype;
        head.bytes = head.count * dtype_bytes(head.dtype);
        s[n++] = (struct saved){.head = head, .param = i, 
                                .same = same_of(w, p, experts), .of = w->origin};
    }
    for (int64_t i = 0; i < old->ntensor; i++)
        if (strcmp(old->tensor[i]->name, head_name) &&
            !name_in(known, w->count, old->tensor[i]->name))
            s[n++] = (struct saved){.head = *old->tensor[i], .param = -1,
                                    .same = old->tensor[i], .of = old};
    qsort(s, (size_t)n, sizeof *s, by_saved_name);
    return n;
}

/* A file ends before the tensor that would make it too large. */
static struct files files_plan(struct arena *a, struct saved *s, int64_t tensors,
                               int64_t most)
{
    struct files f = {.tensors = tensors, .saved = s, .count = 1,
                      .bytes = NEW(a, int64_t, tensors + 1)};
    for (int64_t i = 0; i < tensors; i++) {
        int64_t *filled = &f.bytes[f.count - 1];
        if (*filled && *filled + s[i].head.bytes > most)
            filled = &f.bytes[f.count++];
        s[i].file = f.count - 1;
        s[i].at = *filled;
        *filled += s[i].head.bytes;
    }
    return f;
}

static void heads_make(struct arena *a, struct files *f)
{
    struct disk_tensor *head = NEW(a, struct disk_tensor, f->tensors + 1);
    f->head = NEW(a, struct bytes, f->count);
    for (int64_t i = 0; i < f->tensors; i++)
        head[i] = f->saved[i].head;
    for (int64_t k = 0, first = 0, next = 0; k < f->count; k++, first = next) {
        while (next < f->tensors && f->saved[next].file == k)
            next++;
        f->head[k] = safetensors_head(a, &head[first], next - first, meta, 1);
    }
}

struct hf_outline hf_outline(const struct param *p, int64_t count, enum dtype dtype,
                             int64_t file_bytes)
{
    struct arena a = arena_make("outline");
    const struct hf_folder none = {0};
    const struct hf_weights weights = {.param = p, .count = count};
    struct saved *s;
    int64_t tensors = saved_list(&a, &none, &weights, dtype, &s);
    struct files f = files_plan(&a, s, tensors, file_bytes);
    struct hf_outline out = {.files = f.count};
    for (int64_t i = 0; i < f.count; i++) {
        out.largest = MAX(out.largest, f.bytes[i]);
        out.bytes += f.bytes[i];
    }
    arena_free(&a);
    return out;
}

static char *file_name(struct arena *a, int64_t file, int64_t files)
{
    return files == 1 ? arena_copy(a, single_name, strlen(single_name))
                      : arena_text(a, "model-%05d-of-%05d.safetensors", (int)file + 1,
                                   (int)files);
}

/* ---- rank 0: everything but the parameters ---- */

static bool index_save(struct arena *a, const char *folder, const struct files *f)
{
    json_t *map = json_object();
    json_int_t total = 0;
    for (int64_t i = 0; i < f->tensors; i++) {
        const struct saved *s = &f->saved[i];
        json_object_set_new(map, s->head.name,
                            json_string(file_name(a, s->file, f->count)));
        total += s->head.bytes;
    }
    json_t *all = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", total,
                            "weight_map", map);
    char *text = json_dumps(all, JSON_INDENT(2));
    json_decref(all);
    bool ok = file_replace(path_join(a, folder, index_name), text,
                           (int64_t)strlen(text));
    free(text);
    return ok;
}

/* The type of all parameters written, where they have one: transformers takes the
 * config's word for it, not the files'. */
static const char *type_of(const struct files *f)
{
    static const char *const name[DTYPES] = {
        [DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "float16"};
    enum dtype type = DTYPES;
    for (int64_t i = 0; i < f->tensors; i++)
        if (f->saved[i].param >= 0) {
            if (type != DTYPES && type != f->saved[i].head.dtype)
                return NULL;
            type = f->saved[i].head.dtype;
        }
    return type == DTYPES ? NULL : name[type];
}

/* Byte for byte but for the type of the weights. */
static bool config_copy(struct arena *a, const char *from, const char *to,
                        const char *type)
{
    static const char *const key[] = {"dtype", "torch_dtype", NULL};
    struct bytes text;
    json_t *all;
    if (!type)
        return file_copy(from, to);
    if (!file_read(a, from, CONFIG_MOST, &text))
        return false;
    text = json_with(a, text, key, type);
    if (!json_read(to, text.at, text.size, &all))       /* it is JSON as it was */
        return false;
    json_decref(all);
    return file_replace(to, text.at, text.size);
}

/* `type`: what the config is to say, or NULL. */
static bool others_copy(struct arena *a, const char *from, const char *to,
                        const char *type)
{
    char **name;
    int64_t count;
    if (!folder_list(a, from, &name, &count))
        return false;
    for (int64_t i = 0; i < count; i++) {
        char *path = path_join(a, from, name[i]), *new = path_join(a, to, name[i]);
        bool config = !strcmp(name[i], config_name);
        if (is_weights(name[i]) || folder_exists(path) ||
            (!config && hf_leaves(a, from, name[i])))
            continue;
        if (!(config ? config_copy(a, path, new, type) : file_copy(path, new)))
            return false;
    }
    return true;
}

/* Every file, of its final size, with its head. */
static bool files_make(struct arena *a, const char *folder, const struct files *f)
{
    for (int64_t i = 0; i < f->count; i++) {
        struct file out;
        const struct bytes *head = &f->head[i];
        char *path = path_join(a, folder, file_name(a, i, f->count));
        if (!file_make(path, head->size + f->bytes[i], &out) ||
            !file_sync(&out, file_write_at(&out, head->at, head->size, 0)))
            return false;
    }
    return f->count == 1 || index_save(a, folder, f);
}

/* May `folder` be replaced?  Not where it holds something else than a model. */
static bool target_check(struct arena *a, const char *folder)
{
    char **name;
    int64_t count;
    if (!folder_exists(folder) || file_exists(path_join(a, folder, config_name)))
        return true;
    if (!folder_list(a, folder, &name, &count))
        return false;
    return count == 0 || fail("checkpoint: %s is there and no model folder (it has no "
                              "config.json); expected a new name", folder);
}

/* ---- every rank: its own elements ---- */

enum { OUTLET = 1 << 20 };             /* bytes, which stay in the cache meanwhile */

struct outlet {                         /* what lies together is written together */
    struct file file;
    enum dtype dtype;
    int64_t at, used;                   /* the buffer's bytes go there */
    char *buffer;                       /* [OUTLET] */
};

static bool outlet_flush(struct outlet *o)
{
    int64_t size = o->used;
    o->used = 0;
    return file_write_at(&o->file, o->buffer, size, o->at);
}

/* Room for `size` bytes that go to byte `at` of the file on; NULL: it failed. */
static char *outlet_room(struct outlet *o, int64_t at, int64_t size)
{
    REQUIRE(size <= OUTLET);
    if ((at != o->at + o->used || o->used + size > OUTLET) && !outlet_flush(o))
        return NULL;
    if (o->used == 0)
        o->at = at;
    o->used += size;
    return o->buffer + o->used - size;
}

/* `count` numbers to byte `at` of the file on. */
static bool outlet_put(struct outlet *o, int64_t at, const float *from, int64_t count)
{
    int64_t width = dtype_bytes(o->dtype), most = OUTLET / 8 / width;
    for (int64_t n; count > 0; count -= n, from += n, at += n * width) {
        n = MIN(count, most);
        char *to = outlet_room(o, at, n * width);
        if (!to)
            return false;
        dtype_from_f32(o->dtype, from, to, n);
    }
    return true;
}

/* Rows that follow one another in the file get room at once, others one by one. */
static bool outlet_panel(struct outlet *o, int64_t at, const struct panel *p,
                         const float *from)
{
    const struct strip *s = &p->first;
    int64_t width = dtype_bytes(o->dtype), size = s->count * width;
    struct tile tile;
    if (s->step == 1)
        return outlet_put(o, at + s->disk * width, from + s->memory, s->count);
    bool whole = p->rows > 1 && p->stride == s->count && p->rows * size <= OUTLET;
    char *to = whole ? outlet_room(o, at + s->disk * width, p->rows * size) : NULL;
    if (whole && !to)
        return false;
    for (int64_t c = 0; c < s->count; c += PANEL_COLUMNS) {
        int64_t n = MIN(s->count - c, PANEL_COLUMNS);
        tile_from_memory(&tile, p->rows, n, from + s->memory + c * s->step, s->step);
        for (int64_t r = 0; r < p->rows; r++) {
            int64_t disk = s->disk + r * p->stride + c;
            if (whole)
                dtype_from_f32(o->dtype, tile.at[r], to + r * size + c * width, n);
            else if (!outlet_put(o, at + disk * width, tile.at[r], n))
                return false;
        }
    }
    return true;
}

struct writer {
    const struct files *files;
    const struct hf_weights *weights;
    struct outlet outlet;
    float *slice;                       /* [HF_BUFFER bytes] */
};
enum { SLICE = HF_BUFFER / sizeof(float) };

/* No NaN, no infinity: exponents that are not all ones. */
static bool finite(enum dtype d, const void *at, int64_t bytes)
{
    const uint32_t *wide = at;
    const uint16_t *half = at, ones = d == DTYPE_BF16 ? 0x7F80 : 0x7C00;
    unsigned odd = 0;
    for (int64_t i = 0; d == DTYPE_F32 && i < bytes / 4; i++)
        odd |= (wide[i] & 0x7F800000) == 0x7F800000;
    for (int64_t i = 0; d != DTYPE_F32 && i < bytes / 2; i++)
        odd |= (half[i] & ones) == ones;
    return !odd;
}

static bool finite_check(const struct writer *w, const struct saved *s, enum dtype d,
                         const void *at, int64_t bytes)
{
    if (w->weights->force || finite(d, at, bytes))
        return true;
    fail("checkpoint: '%s' has NaN or infinite values; expected a model that can be "
         "used (vlmoe convert --force writes it all the same)", s->head.name);
    return fail_kind(FAULT_NOT_FINITE);
}

/* As it lies in the origin, in another type. */
static bool same_write(struct writer *w, const struct saved *s, int64_t at)
{
    int64_t width = dtype_bytes(s->head.dtype);
    for (int64_t from = 0, n; from < s->head.count; from += n) {
        n = MIN(s->head.count - from, SLICE / 64);
        disk_load(s->same, from, n, w->slice);
        if (!finite_check(w, s, DTYPE_F32, w->slice, n * (int64_t)sizeof *w->slice) ||
            !outlet_put(&w->outlet, at + from * width, w->slice, n))
            return false;
    }
    return outlet_flush(&w->outlet);
}

/* Of a swapped param whole matrices, as long as they fit: their rows fill the file
 * without a gap. */
static struct stretch slice_of(const struct param *p, bool swapped, int64_t from,
                               int64_t to)
{
    const struct box *b = &p->box;
    int64_t end = MIN(from + SLICE, to);
    if (swapped && end < to) {
        int64_t matrix = b->size[b->ndim - 1] * b->size[b->ndim - 2];
        int64_t whole = end / matrix * matrix;
        end = whole > from ? whole : end;
    }
    return (struct stretch){from, end};
}

/* A slice at a time; `at`: where the whole tensor begins. */
static bool param_write(struct writer *w, const struct saved *s, int64_t at)
{
    const struct param *p = &w->weights->param[s->param];
    struct stretch part = w->weights->part[s->param], slice;
    bool swapped = swapped_in(w->files->experts, p);
    w->outlet.dtype = s->head.dtype;
    if (s->same)
        return same_write(w, s, at);
    for (int64_t from = part.from; from < part.to; from = slice.to) {
        slice = slice_of(p, swapped, from, part.to);
        struct strips strips = strips_of(p, swapped, slice);
        int64_t bytes = (slice.to - slice.from) * (int64_t)sizeof *w->slice;
        if (!w->weights->get(w->weights->arg, s->param, slice, w->slice) ||
            !finite_check(w, s, DTYPE_F32, w->slice, bytes))
            return false;
        for (struct panel x; strips_panel(&strips, &x);)
            if (!outlet_panel(&w->outlet, at, &x, w->slice))
                return false;
    }
    return outlet_flush(&w->outlet);
}

/* Bytes that stay what they are. */
static bool same_bytes(const struct saved *s)
{
    return s->same && s->same->dtype == s->head.dtype;
}

/* From file to file, by pieces that stay in the cache. */
static bool same_copy(const struct writer *w, const struct saved *s, int64_t at)
{
    const struct safetensors *from = hf_file_of(s->of, s->same);
    int64_t begin = (const char *)s->same->data - from->map.at, n;
    char *piece = w->outlet.buffer;
    struct file in;
    if (!file_open(from->path, false, &in))
        return false;
    bool ok = true;
    for (int64_t done = 0; done < s->head.bytes && ok; done += n) {
        n = MIN(s->head.bytes - done, OUTLET);
        ok = file_read_at(&in, piece, n, begin + done) &&
             (s->param < 0 || finite_check(w, s, s->head.dtype, piece, n)) &&
             file_write_at(&w->outlet.file, piece, n, at + done);
    }
    file_close(&in);
    return ok;
}

static bool writes(const struct writer *w, const struct saved *s, bool leads)
{
    if (s->param < 0)
        return leads;
    const struct stretch *part = &w->weights->part[s->param];
    return part->from < part->to;
}

/* Tensors [first, next) of one file, as far as they are this rank's. */
static bool file_write(struct writer *w, const char *path, int64_t first, int64_t next,
                       bool leads)
{
    while (first < next && !writes(w, &w->files->saved[first], leads))
        first++;
    if (first == next)
        return true;
    if (!file_open(path, true, &w->outlet.file))
        return false;
    bool ok = true;
    for (int64_t i = first; i < next && ok; i++) {
        const struct saved *s = &w->files->saved[i];
        int64_t at = w->files->head[s->file].size + s->at;
        if (writes(w, s, leads))
            ok = same_bytes(s) ? same_copy(w, s, at) : param_write(w, s, at);
    }
    return file_sync(&w->outlet.file, ok);
}

static bool parts_write(struct arena *a, const char *folder, const struct files *f,
                        const struct hf_weights *weights, bool leads)
{
    struct arena buffers = arena_make("export");
    char *both = arena_room(&buffers, HF_BUFFER + OUTLET);      /* two would double */
    struct writer w = {.files = f, .weights = weights, .outlet.buffer = both,
                       .slice = (float *)(both + OUTLET)};
    bool ok = true;
    for (int64_t k = 0, first = 0, next = 0; k < f->count && ok; k++, first = next) {
        while (next < f->tensors && f->saved[next].file == k)
            next++;
        ok = file_write(&w, path_join(a, folder, file_name(a, k, f->count)), first,
                        next, leads);
    }
    arena_free(&buffers);
    return ok;
}

/* ---- all of it ---- */

/* What was written is read again before it takes its name. */
static bool written_check(struct arena *a, const char *folder, const struct files *f,
                          const struct hf_weights *w)
{
    struct hf_folder is;
    bool ok = hf_open(a, folder, w->param, w->count, &is);
    ok = ok && (is.ntensor == f->tensors ||
                fail("checkpoint: %s holds %lld tensor(s), %lld were written", folder,
                     (long long)is.ntensor, (long long)f->tensors));
    for (int64_t i = 0; i < f->tensors && ok; i++) {
        const struct disk_tensor *head = &f->saved[i].head;
        const struct disk_tensor *t = hf_find(&is, head->name);
        ok = (t && !strcmp(disk_type(t), disk_type(head)) && same_shape(t, head)) ||
             fail("checkpoint: %s: '%s' is not as it was written", folder, head->name);
    }
    hf_close(&is);
    return ok;
}

static bool folder_save(const struct comm *world, struct arena *a, const char *part,
                        const char *path, const char *from, const struct files *f,
                        const struct hf_weights *weights)
{
    bool leads = world->rank == 0;
    const char *type = weights->retype || !hf_has_weights(from) ? type_of(f) : NULL;
    bool ok = !leads || (folder_remove(part) && folder_make(part) &&
                         others_copy(a, from, part, type) && files_make(a, part, f));
    ok = comm_agree(world, ok);
    ok = ok && comm_agree(world, parts_write(a, part, f, weights, leads));
    if (ok && leads)
        ok = written_check(a, part, f, weights) && folder_sync(part) &&
             folder_replace(part, path);
    if (!ok && leads)
        folder_abandon(part);           /* a full disk keeps nothing of it */
    return ok;
}

bool hf_save(const struct comm *world, const char *folder, const char *from,
             const struct hf_weights *weights, enum dtype dtype, int64_t file_bytes)
{
    struct arena a = arena_make("checkpoint");
    struct hf_folder old = {0};
    size_t size = strlen(folder);
    while (size > 1 && folder[size - 1] == '/')
        size--;
    char *path = arena_copy(&a, folder, size);
    char *part = arena_text(&a, "%s" HF_PART, path);
    bool ok = (world->rank > 0 || target_check(&a, path)) &&
              (!hf_has_weights(from) ||
               hf_open(&a, from, weights->param, weights->count, &old));
    ok = comm_agree(world, ok);         /* nothing is written before that */
    if (ok) {
        struct saved *s;
        int64_t tensors = saved_list(&a, &old, weights, dtype, &s);
        struct files f = files_plan(&a, s, tensors, file_bytes);
        f.experts = layout_of(&old, weights);
        heads_make(&a, &f);
        ok = folder_save(world, &a, part, path, from, &f, weights);
    }
    hf_close(&old);
    ok = comm_agree(world, ok || fail_kind(FAULT_CHECKPOINT));
    arena_free(&a);
    return ok;
}
