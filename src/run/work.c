/* work.c - what every step of a plan computes and moves, counted by the dry device.
 *
 * Stands alone because it runs a plan without memory: the same views, no data. */
#include "run/groups.h"
#include "run/run.h"
#include "run/view.h"

/* A unit's weights come in or its gradients go out, or a value goes to another stage
 * (receiving is free: the sender's link is counted).  Buffers know their own types, so
 * bytes are counted. */
static void state_work(const struct plan *p, const struct step *s, const struct comm *c,
                       int node, struct work *w)
{
    bool gather = s->kind == STEP_GATHER, whole = s->in[0] == s->out[0];
    struct comm_call call = {.dtype = DTYPE_U8, .to = MAX(s->peer, 0)};
    switch (s->kind) {
    case STEP_GATHER: case STEP_REDUCE: case STEP_TIE:
        call.op = gather ? COMM_ALL_GATHER
                         : whole ? COMM_ALL_REDUCE : COMM_REDUCE_SCATTER;
        call.count = p->buffer[gather         ? s->out[0]
                               : s->work >= 0 ? s->work
                                              : s->in[0]].bytes;
        if (s->work >= 0)               /* rounded first */
            w->bytes = (double)(p->buffer[s->in[0]].bytes + p->buffer[s->work].bytes);
        if (call.op != COMM_ALL_REDUCE)
            call.count /= c->size;
        break;
    case STEP_SEND: case STEP_SEND_GRAD:
        call.op = COMM_SEND;
        call.count = p->buffer[s->kind == STEP_SEND ? s->in[0] : s->dout[0]].bytes;
        break;
    default:
        call.op = COMM_RECV;
    }
    struct link_bytes b = comm_bytes(&call, c->member, c->size, c->rank, node);
    w->calls = 1;
    w->inside = b.inside;
    w->across = b.across;
}

/* What the step said to others, out of the count. */
static void traffic_take(struct traffic *t, struct work *w)
{
    for (int op = 0; op < COMM_OPS; op++) {
        w->calls += t->calls[op];
        w->inside += t->bytes[op].inside;
        w->across += t->bytes[op].across;
    }
    *t = (struct traffic){.node = t->node};
}

void plan_work(const struct plan *p, struct work *work)
{
    struct arena scratch = arena_make("plan work");
    struct views views = views_make(&scratch, p);
    struct stream stream = {0};
    struct pass pass = {.run = {.ops = &ops_dry, .stream = &stream}};
    const struct mesh *mesh = p->graph->mesh;
    struct traffic traffic = {.node = mesh ? mesh->layout.node : 0};
    struct groups groups = groups_dry(&scratch, &traffic);
    for (int64_t i = 0; i < p->nstep; i++) {
        const struct step *s = &p->step[i];
        work[i] = (struct work){0};
        stream.work = &work[i];
        pass.run.comm = groups_find(&groups, p, s);
        if (s->node >= 0)
            pass_run(&pass, &views, s, NULL);
        else if (pass.run.comm)
            state_work(p, s, pass.run.comm, traffic.node, &work[i]);
        else if (s->kind == STEP_ADD)
            work[i].bytes = 3.0 * (double)p->buffer[s->in[0]].bytes;
        else if (s->out[0] >= 0)
            work[i].bytes = 2.0 * (double)p->buffer[s->out[0]].bytes;
        traffic_take(&traffic, &work[i]);
    }
    arena_free(&scratch);
}
