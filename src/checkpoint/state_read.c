/* state_read.c - a training state is opened, checked and read, block by block.
 *
 * Stands alone because it trusts nothing: what state.c wrote may have been cut short or
 * changed since. */
#include "checkpoint/state_files.h"

#include "checkpoint/safetensors.h"
#include "checkpoint/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

enum { MANIFEST_MOST = 1 << 30 };

char *step_path(struct arena *a, const char *root, int64_t step)
{
    return arena_text(a, "%s/step-%" PRId64, root, step);
}

char *file_path(struct arena *a, const char *folder, int64_t file)
{
    return arena_text(a, "%s/rank-%" PRId64 ".bin", folder, file);
}

/* ---- opening ---- */

static bool sizes_check(const struct state *s)
{
    struct arena a = arena_make("checkpoint");
    bool ok = true;
    for (int64_t i = 0; i < s->manifest.files && ok; i++) {
        const char *path = file_path(&a, s->path, i);
        int64_t have = file_size(path), want = s->manifest.bytes[i];
        if (have < 0)
            ok = fail("checkpoint: %s is missing", path);
        else if (have != want)
            ok = fail("checkpoint: %s is %" PRId64 " byte(s), its manifest says "
                      "%" PRId64, path, have, want);
    }
    arena_free(&a);
    return ok;
}

static bool open_step(struct arena *a, int64_t step, struct state *s)
{
    struct bytes text;
    char *path = path_join(a, s->path, manifest_name);
    if (!file_read(a, path, MANIFEST_MOST, &text) ||
        !manifest_parse(a, path, text, &s->manifest))
        return false;
    if (s->manifest.step != step)
        return fail("checkpoint: %s is of step %" PRId64 ", its folder says %" PRId64,
                    path, s->manifest.step, step);
    return sizes_check(s);
}

bool state_at(struct arena *a, const char *path, int64_t step, struct state *out)
{
    *out = (struct state){.path = path};
    return open_step(a, step, out) || fail_kind(FAULT_CHECKPOINT);
}

bool state_open(struct arena *a, const char *root, int64_t step, struct state *out)
{
    return state_at(a, step_path(a, root, step), step, out);
}

/* ---- blocks: what is read is checked ---- */

struct reader {
    const struct state *state;
    const struct manifest_tensor *tensor;
    struct arena memory, names;
    struct file file;
    int64_t piece, block;               /* in `at` now; -1 none */
    char *at;                           /* [manifest.block] */
};

static struct reader reader_make(const struct state *s)
{
    struct reader r = {.state = s, .memory = arena_make("block"), .piece = -1,
                       .names = arena_make("block"), .file = {.fd = -1}};
    r.at = arena_room(&r.memory, (size_t)s->manifest.block);
    return r;
}

static void reader_free(struct reader *r)
{
    if (r->file.fd >= 0)
        file_close(&r->file);
    arena_free(&r->memory);
    arena_free(&r->names);
}

static bool piece_open(struct reader *r, const struct manifest_tensor *t, int64_t piece)
{
    if (r->file.fd >= 0)
        file_close(&r->file);
    r->tensor = t;
    r->piece = piece;
    r->block = -1;
    return file_open(file_path(&r->names, r->state->path, t->piece[piece].rank), false,
                     &r->file);
}

static bool block_load(struct reader *r, int64_t block)
{
    const struct manifest_tensor *t = r->tensor;
    int64_t unit = r->state->manifest.block, from = block * unit;
    int64_t size = MIN(unit, piece_bytes(t, r->piece) - from);
    if (!file_read_at(&r->file, r->at, size, t->at[r->piece] + from))
        return false;
    uint64_t is = XXH3_64bits(r->at, (size_t)size), was = t->hash[r->piece][block];
    r->block = block;
    from += t->at[r->piece];            /* of the file */
    return is == was ||
           fail("checkpoint: %s: tensor '%s' is damaged within bytes %" PRId64 " to %"
                PRId64 " (hash %016" PRIx64 ", saved as %016" PRIx64 ")", r->file.path,
                t->name, from, from + size, is, was);
}

/* ---- pieces ---- */

/* Bytes of the piece that is open, from `from` on. */
static bool bytes_copy(struct reader *r, int64_t from, int64_t size, char *to)
{
    int64_t unit = r->state->manifest.block;
    while (size > 0) {
        if (r->block != from / unit && !block_load(r, from / unit))
            return false;
        int64_t n = MIN(size, unit - from % unit);
        memcpy(to, r->at + from % unit, (size_t)n);
        from += n;
        to += n;
        size -= n;
    }
    return true;
}

/* By where they are: every block is loaded once. */
static int by_source(const void *a, const void *b)
{
    const struct copy *x = a, *y = b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return (x->from > y->from) - (x->from < y->from);
}

static bool slice_read(struct reader *r, const struct manifest_tensor *t,
                       const struct shard *want, char *to)
{
    struct arena a = arena_make("copies");
    int64_t size = dtype_bytes(t->dtype), count = 0;
    struct copy *copy;
    bool ok = shard_overlap(&a, t->piece, t->pieces, want, &copy, &count);
    if (ok)
        qsort(copy, (size_t)count, sizeof *copy, by_source);
    for (int64_t i = 0; i < count && ok; i++) {
        const struct copy *c = &copy[i];
        ok = (c->shard == r->piece || piece_open(r, t, c->shard)) &&
             bytes_copy(r, c->from * size, c->length * size, to + c->to * size);
    }
    arena_free(&a);
    return ok;
}

static void retype(struct arena *a, const struct manifest_tensor *t, const void *from,
                   enum dtype dtype, void *to, int64_t count)
{
    float *f32 = arena_room(a, sizeof *f32 * (size_t)count);
    dtype_to_f32(t->dtype, from, f32, count);
    dtype_from_f32(dtype, f32, to, count);
}

/* So much at a time that the list of copies stays short, however narrow boxes are; and
 * so little that another type fits beside it. */
static bool elements_read(struct reader *r, const struct manifest_tensor *t,
                          const struct state_piece *want, char *to)
{
    enum { COPIES = 1 << 13, BESIDE = 1 << 18 };
    struct arena a = arena_make("elements");
    bool same = t->dtype == want->dtype, ok = true;
    int64_t row = MIN(box_row(&want->box), box_row(&t->piece[0].box));
    int64_t most = same ? MAX(row, 1) * COPIES : BESIDE, from = want->part.from;
    char *raw = same ? NULL : arena_room(&a, (size_t)(most * dtype_bytes(t->dtype)));
    struct arena_mark mark = arena_mark(&a);
    for (; from < want->part.to && ok; from += most) {
        struct shard slice = {.box = want->box,
                              .part = {from, MIN(from + most, want->part.to)}};
        char *at = to + (from - want->part.from) * dtype_bytes(want->dtype);
        ok = slice_read(r, t, &slice, same ? at : raw);
        if (ok && !same)
            retype(&a, t, raw, want->dtype, at, slice.part.to - from);
        arena_reset(&a, mark);
    }
    arena_free(&a);
    return ok;
}

static bool floating(enum dtype d)
{
    return d == DTYPE_F32 || d == DTYPE_BF16 || d == DTYPE_F16;
}

static bool shape_differs(const struct state *s, const struct manifest_tensor *t,
                          const struct state_piece *want)
{
    struct arena a = arena_make("message");
    fail("checkpoint: %s: tensor '%s' is %s, this run needs %s (was the model "
         "changed?)", s->path, t->name,
         disk_text(&a, dtype_safetensors(t->dtype), t->ndim, t->dim),
         disk_text(&a, dtype_safetensors(want->dtype), want->box.ndim, want->box.dim));
    arena_free(&a);
    return false;
}

static bool piece_read(const struct state *s, const struct state_piece *want, void *to)
{
    const struct manifest_tensor *t = manifest_find(&s->manifest, want->name);
    if (!t)
        return fail("checkpoint: %s has no tensor '%s'", s->path, want->name);
    bool fits = t->dtype == want->dtype ||
                (floating(t->dtype) && floating(want->dtype));
    if (!fits || t->ndim != want->box.ndim ||
        memcmp(t->dim, want->box.dim, sizeof *t->dim * (size_t)t->ndim))
        return shape_differs(s, t, want);
    struct reader r = reader_make(s);
    bool ok = elements_read(&r, t, want, to);
    reader_free(&r);
    return ok;
}

bool state_read(const struct state *s, const struct state_piece *want, void *to)
{
    return piece_read(s, want, to) || fail_kind(FAULT_CHECKPOINT);
}

static bool piece_verify(struct reader *r, const struct manifest_tensor *t, int64_t i)
{
    int64_t bytes = piece_bytes(t, i), unit = r->state->manifest.block;
    bool ok = piece_open(r, t, i);
    for (int64_t at = 0; at < bytes && ok; at += unit)
        ok = block_load(r, at / unit);
    return ok;
}

bool state_verify(const struct state *s, int share, int shares)
{
    struct reader r = reader_make(s);
    bool ok = true;
    for (int64_t i = 0; i < s->manifest.tensors && ok; i++) {
        const struct manifest_tensor *t = &s->manifest.tensor[i];
        for (int64_t k = 0; k < t->pieces && ok; k++)
            ok = t->piece[k].rank % shares != share || piece_verify(&r, t, k);
    }
    reader_free(&r);
    return ok || fail_kind(FAULT_CHECKPOINT);
}
