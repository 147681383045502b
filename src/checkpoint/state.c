/* state.c - saves and finds training states; what the tensors mean it does not know.
 * How one is read stands in state_read.c. */
#include "checkpoint/state.h"

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/state_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

enum { BLOCK = 4 << 20 };               /* bytes: of a write, and of a hash */

int64_t state_piece_bytes(const struct state_piece *p)
{
    return (p->part.to - p->part.from) * dtype_bytes(p->dtype);
}

static bool leads(const struct comm *world)
{
    return world->rank == 0;
}

static bool is_complete(const char *root, int64_t step)
{
    struct arena a = arena_make("checkpoint");
    struct state s;
    bool ok = state_open(&a, root, step, &s);
    arena_free(&a);
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

/* ---- saving: every rank its file ---- */

/* Block by block, so that each is hashed as it was written. */
static bool piece_write(const struct file *f, int64_t at, const struct state_piece *p,
                        struct content *c)
{
    struct arena a = arena_make("hashes");
    int64_t bytes = state_piece_bytes(p);
    int64_t blocks = (bytes + BLOCK - 1) / BLOCK;
    uint64_t *hash = NEW(&a, uint64_t, blocks);
    bool ok = true;
    for (int64_t i = 0; i < blocks && ok; i++) {
        const char *from = (const char *)p->data + i * BLOCK;
        int64_t size = MIN(bytes - i * BLOCK, BLOCK);
        hash[i] = XXH3_64bits(from, (size_t)size);
        ok = file_write_at(f, from, size, at + i * BLOCK);
    }
    if (ok)
        content_add(c, p->name, p->dtype, &p->box, p->part, hash, blocks);
    arena_free(&a);
    return ok;
}

static bool pieces_write(const char *path, const struct state_piece *piece,
                         int64_t count, struct content *c)
{
    struct file f;
    int64_t at = 0;
    bool ok = file_make(path, 0, &f);
    if (!ok)
        return false;
    for (int64_t i = 0; i < count && ok; i++) {
        ok = piece_write(&f, at, &piece[i], c);
        at += state_piece_bytes(&piece[i]);
    }
    return file_sync(&f, ok);
}

/* What each file holds, on rank 0. */
static bool contents_gather(const struct comm *world, struct arena *a, char *own,
                            char **all)
{
    int64_t size = (int64_t)strlen(own);
    if (!leads(world))
        return comm_send(world, DTYPE_I64, 0, 0, &size, 1) &&
               comm_send(world, DTYPE_U8, 0, 1, own, size);
    all[0] = own;
    for (int r = 1; r < world->size; r++) {
        if (!comm_recv(world, DTYPE_I64, r, 0, &size, 1))
            return false;
        all[r] = arena_push(a, (size_t)size + 1);
        if (!comm_recv(world, DTYPE_U8, r, 1, all[r], size))
            return false;
    }
    return true;
}

/* ---- saving: what rank 0 does before and after ---- */

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

bool state_sweep(const char *root)
{
    struct arena a = arena_make("checkpoint");
    bool ok = !folder_exists(root) || parts_remove(&a, root);
    arena_free(&a);
    return ok || fail_kind(FAULT_CHECKPOINT);
}

/* Torn steps are not counted and stay, as evidence. */
static bool others_remove(struct arena *a, const char *root, int64_t saved, int keep)
{
    int64_t *step, count;
    if (!steps_list(a, root, &step, &count))
        return false;
    for (int64_t i = count - 1; i >= 0; i--) {
        if (step[i] == saved || !is_complete(root, step[i]) || --keep > 0)
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

/* What was written is read again, with the sizes of the files, before it counts. */
static bool part_finish(struct arena *a, const char *part, int64_t step,
                        const char *meta, char *const *content, int64_t files)
{
    struct state again;
    char *text, *path = path_join(a, part, manifest_name);
    return manifest_text(a, path, step, meta, BLOCK, content, files, &text) &&
           file_replace(path, text, (int64_t)strlen(text)) && folder_sync(part) &&
           state_at(a, part, step, &again);
}

static bool save(const struct comm *world, struct arena *a, const char *root,
                 int64_t step, const struct state_piece *piece, int64_t count,
                 const char *meta, int keep)
{
    char *part = arena_text(a, "%s/.step-%" PRId64 ".part", root, step);
    char **content = NEW(a, char *, world->size);
    bool ok = !leads(world) ||
              (folder_make(root) && parts_remove(a, root) && folder_make(part));
    if (!comm_agree(world, ok))
        return false;
    struct content *own = content_make(a);
    ok = pieces_write(file_path(a, part, world->rank), piece, count, own);
    char *text = content_text(own);
    ok = comm_agree(world, ok) && (contents_gather(world, a, text, content) ||
                                   fail_kind(FAULT_RANK));
    if (ok && leads(world))
        ok = part_finish(a, part, step, meta, content, world->size) &&
             folder_replace(part, step_path(a, root, step));
    if (!ok && leads(world))
        folder_abandon(part);           /* a full disk keeps nothing of it */
    if (ok && leads(world) && keep > 0 && !others_remove(a, root, step, keep)) {
        log_warn("checkpoint", "%s", fail_message());
        fail_clear();                   /* the new state is there all the same */
    }
    return ok;
}

bool state_save(const struct comm *world, const char *root, int64_t step,
                const struct state_piece *piece, int64_t count, const char *meta,
                int keep)
{
    REQUIRE(step >= 0);
    struct arena a = arena_make("checkpoint");
    bool ok = save(world, &a, root, step, piece, count, meta, keep) ||
              fail_kind(FAULT_CHECKPOINT);
    arena_free(&a);
    return comm_agree(world, ok);
}

/* ---- finding ---- */

/* Rank 0's list, to all. */
static bool steps_share(const struct comm *world, struct arena *a, const char *root,
                        int64_t **step, int64_t *count)
{
    bool ok = !leads(world) || steps_list(a, root, step, count) ||
              fail_kind(FAULT_CHECKPOINT);
    if (!comm_agree(world, ok) || !comm_broadcast(world, DTYPE_I64, 0, count, 1))
        return false;
    if (!leads(world))
        *step = NEW(a, int64_t, *count + 1);
    return comm_broadcast(world, DTYPE_I64, 0, *step, *count) ||
           fail_kind(FAULT_RANK);
}

/* Names that no manifest speaks of: they do no harm, but somebody should know. */
static void strangers_tell(const struct state *s)
{
    struct arena a = arena_make("checkpoint");
    char **name;
    int64_t count;
    if (!folder_list(&a, s->path, &name, &count))
        count = 0;
    for (int64_t i = 0; i < count; i++) {
        bool ours = !strcmp(name[i], manifest_name);
        for (int64_t k = 0; k < s->manifest.files && !ours; k++)
            ours = !strcmp(path_join(&a, s->path, name[i]), file_path(&a, s->path, k));
        if (!ours)
            log_warn("checkpoint", "%s/%s is not of this training state", s->path,
                     name[i]);
    }
    arena_free(&a);
}

static bool is_whole(const struct comm *world, const char *root, int64_t step)
{
    struct arena a = arena_make("checkpoint");
    struct state s;
    bool ok = state_open(&a, root, step, &s) &&
              state_verify(&s, world->rank, world->size);
    ok = comm_agree(world, ok);
    if (ok && leads(world))
        strangers_tell(&s);
    arena_free(&a);
    return ok;
}

static bool newest(const struct comm *world, struct arena *a, const char *root,
                   int64_t *out)
{
    int64_t *step, count = 0;
    if (!steps_share(world, a, root, &step, &count))
        return false;
    for (int64_t i = count - 1; i >= 0; i--) {
        if (is_whole(world, root, step[i])) {
            *out = step[i];
            return true;
        }
        if (fail_fault() != FAULT_CHECKPOINT)           /* a rank was lost */
            return false;
        if (leads(world))
            log_warn("checkpoint", "%s; it is not used", fail_message());
    }
    if (count == 0)
        return true;
    fail("checkpoint: none of the %" PRId64 " training state(s) in %s is whole; move "
         "them away to start again from step 1", count, root);
    return fail_kind(FAULT_CHECKPOINT);
}

bool state_newest(const struct comm *world, const char *root, int64_t *out)
{
    struct arena a = arena_make("checkpoint");
    *out = -1;
    bool ok = newest(world, &a, root, out);
    arena_free(&a);
    return ok;
}
