/* work.c - what every step of a plan computes and moves, counted by the dry device.
 *
 * Stands alone because it runs a plan without memory: the same views, no data. */
#include "run/run.h"
#include "run/view.h"

void plan_work(const struct plan *p, struct work *work)
{
    struct arena scratch = arena_make("plan work");
    struct views views = views_make(&scratch, p);
    struct stream stream = {0};
    struct pass pass = {.run = {.ops = &ops_dry, .stream = &stream}};
    for (int64_t i = 0; i < p->nstep; i++) {
        const struct step *s = &p->step[i];
        work[i] = (struct work){0};
        stream.work = &work[i];
        if (s->node >= 0)
            pass_run(&pass, &views, s, NULL);
        else if (s->out[0] >= 0)
            work[i].bytes = 2.0 * (double)p->buffer[s->out[0]].bytes;
    }
    arena_free(&scratch);
}
