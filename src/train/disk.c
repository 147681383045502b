/* disk.c - what a run writes, by its recipe, against what its file system has. */
#include "train/disk.h"

#include "base/log.h"
#include "train/choices.h"
#include "train/weights.h"

#include <sys/statvfs.h>

enum { LINE_BYTES = 2000 };             /* of metrics and events, a step */

/* States that are still to be written; by epochs nobody knows, so two at least. */
static int64_t states_ahead(const struct recipe *r, int64_t step)
{
    int64_t every = r->checkpoint_every, left = MAX(r->train_steps - step, 0);
    if (r->train_epochs)
        return every ? 2 : 1;
    if (left == 0)
        return 0;
    return 1 + (every ? (r->train_steps - 1) / every - step / every : 0);
}

struct disk_need disk_need_of(const struct session *s, int64_t step, int64_t kept)
{
    const struct recipe *r = s->recipe;
    enum dtype dtype = dtype_of_export(r->checkpoint_dtype);
    int64_t ahead = states_ahead(r, step), all = kept + ahead;
    int64_t keep = r->checkpoint_keep;
    struct disk_need n = {
        .state = 4 * model_parameters(&s->model, false) +
                 8 * model_parameters(&s->model, true),
        .states = keep ? MAX(MIN(all, keep) - kept, 0) : ahead,
        .metrics = r->train_epochs ? 0 : LINE_BYTES * MAX(r->train_steps - step, 0),
    };
    n.states += keep && ahead && all > keep;    /* the new one, then the old goes */
    if (r->checkpoint_export)
        n.export = weights_outline(&s->model, dtype).bytes;
    return n;
}

bool disk_check(const char *run, const struct disk_need *n)
{
    struct statvfs v;
    int64_t least = MIN(n->states, 1) * n->state + n->export;
    int64_t all = n->states * n->state + n->export + n->metrics;
    if (statvfs(run, &v) != 0)
        return true;                    /* a place that does not tell */
    double free = (double)v.f_bavail * (double)v.f_frsize;
    if (free < (double)least) {
        fail("train: %s has %.3f GB free, but a training state takes %.3f GB and the "
             "exported model %.3f GB; make room, set run.folder to another place, or "
             "checkpoint.export to false", run, free / 1e9, (double)n->state / 1e9,
             (double)n->export / 1e9);
        return fail_kind(FAULT_CHECKPOINT);
    }
    if (free < (double)all)
        log_warn("train", "%s has %.3f GB free, but the run will take %.3f GB: %lld "
                 "training state(s) of %.3f GB (checkpoint.every, checkpoint.keep), a "
                 "model of %.3f GB, metrics", run, free / 1e9, (double)all / 1e9,
                 (long long)n->states, (double)n->state / 1e9, (double)n->export / 1e9);
    else
        log_info("train", "%s will take %.3f GB more, of %.3f GB free", run,
                 (double)all / 1e9, free / 1e9);
    return true;
}
