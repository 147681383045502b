/* run.c - the loop: lanes walk the list, wait for each other where it says so.
 *
 * Stands alone because it takes no decisions and allocates nothing once made.  Each
 * lane counts the steps it has done; a wait is for another lane's count. */
#include "run/run.h"

#include "base/clock.h"
#include "base/queue.h"
#include "run/groups.h"
#include "run/slab.h"
#include "run/view.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

struct lane_state {
    _Alignas(64) atomic_llong done;     /* steps of this lane's list that are done */
    struct machine *machine;
    struct queue *go;                   /* an item: run your list once */
    struct pass pass;                   /* what segments of this lane see */
    int64_t *list;                      /* steps of this lane, in order */
    int64_t *ran;                       /* [tallies] */
};

struct machine {
    const struct plan *plan;
    struct machine_options options;
    struct stream stream;
    struct arena memory;                /* of the current plan: lists, views, counts */
    struct slab device, host;
    struct views views;
    struct groups groups;
    const struct comm **comm;           /* [steps] */
    const void **bound;                 /* [mbs * values] */
    bool check, trace;
    struct span *span;                  /* [steps] */
    int64_t steps;
    atomic_bool lost;                   /* a rank, in this step */
    struct lane_state lane[LANES];
    struct workers *workers;            /* all lanes but compute; NULL: no lanes */
};

/* ---- one step ---- */

static void run_copy(const struct machine *m, const struct step *s)
{
    const struct plan *p = m->plan;
    const struct buffer *to = &p->buffer[s->out[0]];
    char *host = m->host.at, *device = m->device.at;
    int64_t input = s->mb * p->graph->nvalue + s->value;
    size_t bytes = (size_t)to->bytes;
    if (s->kind == STEP_OFFLOAD)
        memcpy(host + to->offset, device + p->buffer[s->in[0]].offset, bytes);
    else if (s->kind == STEP_FETCH)
        memcpy(device + to->offset, host + p->buffer[s->in[0]].offset, bytes);
    else
        memcpy(device + to->offset, m->bound[input], bytes);
}

static void run_zero(const struct machine *m, const struct step *s)
{
    const struct buffer *x = &m->plan->buffer[s->dw[0]];
    if (s->param < 0) {
        memset(m->device.at + x->offset, 0, (size_t)x->bytes);
        return;
    }
    struct tensor t = view_param(&m->views, m->device.at, s->param, s->dw[0]);
    memset(t.data, 0, (size_t)(tensor_count(t) * dtype_bytes(t.dtype)));
}

static void run_gather(const struct machine *m, int64_t i)
{
    const struct step *s = &m->plan->step[i];
    const struct comm *c = m->comm[i];
    const struct buffer *from = &m->plan->buffer[s->in[0]];
    const struct buffer *to = &m->plan->buffer[s->out[0]];
    int64_t each = to->bytes / c->size, at = from == to ? c->rank * each : 0;
    comm_all_gather(c, to->dtype, m->device.at + from->offset + at,
                    m->device.at + to->offset, each / dtype_bytes(to->dtype));
}

/* Of f32 gradients: rounded once to travel, summed in f32; what goes back to all is
 * rounded once more. */
static void run_reduce_narrow(const struct machine *m, int64_t i, const float *in,
                              int64_t whole, float *out, int64_t count)
{
    const struct step *s = &m->plan->step[i];
    void *sent = m->device.at + m->plan->buffer[s->work].offset;
    dtype_from_f32(s->wire, in, sent, whole);
    if (in != out) {
        comm_reduce_wide(m->comm[i], sent, s->beta[0], out, count);
        return;
    }
    comm_all_reduce(m->comm[i], s->wire, sent, count);
    dtype_to_f32(s->wire, sent, out, count);
}

static void run_reduce(const struct machine *m, int64_t i)
{
    const struct step *s = &m->plan->step[i];
    const struct buffer *from = &m->plan->buffer[s->in[0]];
    const struct buffer *to = &m->plan->buffer[s->out[0]];
    void *in = m->device.at + from->offset, *out = m->device.at + to->offset;
    int64_t count = to->bytes / dtype_bytes(to->dtype);
    if (s->wire != to->dtype)
        run_reduce_narrow(m, i, in, from->bytes / dtype_bytes(from->dtype), out, count);
    else if (in == out)
        comm_all_reduce(m->comm[i], s->wire, out, count);
    else
        comm_reduce_scatter(m->comm[i], s->wire, in, s->beta[0], out, count);
}

/* One value or gradient, from or to another stage. */
static void run_message(const struct machine *m, int64_t i)
{
    const struct step *s = &m->plan->step[i];
    const struct value *v = &m->plan->graph->value[s->value];
    const int buffer[] = {s->in[0], s->out[0], s->dout[0], s->din[0]};
    int at = s->kind - STEP_SEND;
    char *data = m->device.at + m->plan->buffer[buffer[at]].offset;
    if (s->kind == STEP_SEND || s->kind == STEP_SEND_GRAD)
        comm_send(m->comm[i], v->dtype, s->peer, s->tag, data, value_count(v));
    else
        comm_recv(m->comm[i], v->dtype, s->peer, s->tag, data, value_count(v));
}

static void run_add(struct machine *m, const struct step *s)
{
    m->options.ops->axpby(&m->stream, 1,
                          view_value(&m->views, m->device.at, s->value, s->in[0]),
                          s->beta[0],
                          view_value(&m->views, m->device.at, s->value, s->din[0]));
}

/* Once a rank is lost, what its messages would have brought means nothing, counts of
 * rows included: the steps left are passed over, on all lanes. */
static void run_step(struct machine *m, struct lane_state *lane, int64_t i)
{
    const struct step *s = &m->plan->step[i];
    if (atomic_load_explicit(&m->lost, memory_order_relaxed))
        return;
    if (m->trace)
        m->span[i].start = clock_seconds();
    switch (s->kind) {
    case STEP_FORWARD: case STEP_BACKWARD: case STEP_WEIGHT:
        lane->pass.run.comm = m->comm[i];
        pass_run(&lane->pass, &m->views, s, m->device.at);
        break;
    case STEP_LOAD: case STEP_OFFLOAD: case STEP_FETCH:
        run_copy(m, s);
        break;
    case STEP_ZERO:
        run_zero(m, s);
        break;
    case STEP_GATHER:
        run_gather(m, i);
        break;
    case STEP_REDUCE: case STEP_TIE:
        run_reduce(m, i);
        break;
    case STEP_SEND: case STEP_RECV: case STEP_SEND_GRAD: case STEP_RECV_GRAD:
        run_message(m, i);
        break;
    case STEP_ADD:
        run_add(m, s);
        break;
    case STEP_KINDS:
        BUG("run: step %lld is of no known kind", (long long)i);
    }
    if (m->comm[i] && !comm_check(m->comm[i]))
        atomic_store_explicit(&m->lost, true, memory_order_relaxed);
    lane->ran[s->tally]++;
    if (m->trace)
        m->span[i].end = clock_seconds();
}

/* ---- lanes ---- */

/* Until `lane` has done `count` steps: spin, then yield, then sleep. */
static void lane_wait(const struct lane_state *lane, int64_t count)
{
    enum { SPINS = 2000, YIELDS = 2100, NAP = 20000, LONG_NAP = 200000 };
    struct timespec nap = {.tv_nsec = NAP};
    const atomic_llong *done = &lane->done;
    for (int i = 0; atomic_load_explicit(done, memory_order_acquire) < count; i++) {
        if (i < SPINS)
            continue;
        if (i < YIELDS) {
            sched_yield();
            continue;
        }
        nanosleep(&nap, NULL);
        nap.tv_nsec = MIN(2 * nap.tv_nsec, LONG_NAP);
    }
}

static void lane_run(struct machine *m, struct lane_state *lane, int64_t length)
{
    for (int64_t i = 0; i < length; i++) {
        const struct step *s = &m->plan->step[lane->list[i]];
        for (int l = 0; l < LANES; l++)
            if (s->wait[l] > 0)
                lane_wait(&m->lane[l], s->wait[l]);
        run_step(m, lane, lane->list[i]);
        atomic_store_explicit(&lane->done, i + 1, memory_order_release);
    }
}

static void lane_main(void *arg, int index)
{
    struct machine *m = arg;
    int l = index + 1;                  /* the caller is the compute lane */
    while (queue_pop(m->lane[l].go))
        lane_run(m, &m->lane[l], m->plan->length[l]);
}

static void step_lanes(struct machine *m)
{
    for (int l = 0; l < LANES; l++)
        atomic_store_explicit(&m->lane[l].done, 0, memory_order_relaxed);
    for (int l = 1; l < LANES; l++)
        if (m->plan->length[l] > 0)
            queue_push(m->lane[l].go, m);
    lane_run(m, &m->lane[LANE_COMPUTE], m->plan->length[LANE_COMPUTE]);
    for (int l = 1; l < LANES; l++)
        lane_wait(&m->lane[l], m->plan->length[l]);
}

/* ---- check mode ---- */

static bool finite_all(struct tensor t)
{
    int64_t n = tensor_is(t) ? tensor_count(t) : 0;
    float row[256];
    if (t.dtype != DTYPE_F32 && t.dtype != DTYPE_BF16 && t.dtype != DTYPE_F16)
        return true;
    for (int64_t i = 0; i < n; i += COUNT(row)) {
        int64_t count = MIN(n - i, COUNT(row));
        dtype_to_f32(t.dtype, (char *)t.data + i * dtype_bytes(t.dtype), row, count);
        for (int64_t k = 0; k < count; k++)
            if (!isfinite(row[k]))
                return false;
    }
    return true;
}

bool machine_finite(const struct machine *m, enum held what, int param)
{
    struct stretch part;
    return finite_all(machine_own(m, what, param, &part));
}

static bool not_finite(const struct machine *m, int64_t step, const char *what,
                       const char *name)
{
    struct arena a = arena_make("run check");
    struct text t = text_make(&a);
    plan_explain_step(m->plan, step, &t);
    fail("run: step %s wrote a value that is not finite: %s%s", t.at, what, name);
    arena_free(&a);
    return fail_kind(FAULT_NOT_FINITE);
}

static bool step_finite(const struct machine *m, int64_t i)
{
    const struct graph *g = m->plan->graph;
    const struct step *s = &m->plan->step[i];
    char *slab = m->device.at;
    if (s->kind == STEP_LOAD &&
        !finite_all(view_value(&m->views, slab, s->value, s->out[0])))
        return not_finite(m, i, "", g->value[s->value].name);
    if (s->node < 0)
        return true;
    const struct node *n = &g->node[s->node];
    for (int k = 0; k < n->nout && s->kind == STEP_FORWARD; k++)
        if (n->out[k] != NONE && !g->value[n->out[k]].held &&   /* some unwritten */
            !finite_all(view_value(&m->views, slab, n->out[k], s->out[k])))
            return not_finite(m, i, "", g->value[n->out[k]].name);
    for (int k = 0; k < n->nin; k++)
        if (!finite_all(view_value(&m->views, slab, n->in[k], s->din[k])))
            return not_finite(m, i, "gradient of ", g->value[n->in[k]].name);
    for (int k = 0; k < n->nw; k++)
        if (!finite_all(view_param(&m->views, slab, n->w[k], s->dw[k])))
            return not_finite(m, i, "gradient of ", g->param[n->w[k]].name);
    return true;
}

static bool step_in_order(struct machine *m)
{
    for (int64_t i = 0; i < m->plan->nstep; i++) {
        run_step(m, &m->lane[m->plan->step[i].lane], i);
        if (m->check && !m->lost && !step_finite(m, i))
            return false;
    }
    return true;
}

/* ---- the machine ---- */

bool machine_step(struct machine *m)
{
    const struct plan *p = m->plan;
    for (int64_t i = 0; i < p->nstep; i++) {
        const struct step *s = &p->step[i];
        if (s->kind == STEP_LOAD && !m->bound[s->mb * p->graph->nvalue + s->value])
            BUG("run: input %s of microbatch %d is not bound",
                p->graph->value[s->value].name, s->mb);
    }
    bool ok = true;
    atomic_store_explicit(&m->lost, false, memory_order_relaxed);
    if (m->options.lanes && !m->check)
        step_lanes(m);
    else
        ok = step_in_order(m);
    memset(m->bound, 0, sizeof *m->bound * (size_t)(p->mbs * p->graph->nvalue));
    if (ok && !comm_check(&m->groups.world))
        return fail_kind(FAULT_RANK);
    m->steps += ok;
    return ok;
}

/* Numbers nobody wrote are NaN: they show.  Padding between params stays zero. */
static void fill_unwritten(struct machine *m, int64_t from)
{
    memset(m->device.at + from, 0xff, (size_t)(m->device.bytes - from));
}

static void fill_gradients(struct machine *m)
{
    for (int i = 0; i < m->plan->graph->nparam; i++) {
        struct stretch part;
        struct tensor t = machine_own(m, HELD_GRADIENT, i, &part);
        if (tensor_is(t))
            memset(t.data, 0xff, (size_t)(tensor_count(t) * dtype_bytes(t.dtype)));
    }
}

bool machine_use(struct machine *m, const struct plan *p)
{
    int64_t state = p->state_bytes - p->held_bytes, had = MAX(m->device.bytes, state);
    bool first = !m->plan;
    REQUIRE(first || state == m->plan->state_bytes - m->plan->held_bytes);
    if (!groups_fit(&m->groups, p->graph) ||
        !slab_grow("device memory", p->bytes, &m->device) ||
        !slab_grow("host memory", p->host_bytes, &m->host))
        return false;
    arena_free(&m->memory);
    m->plan = p;
    m->steps = 0;
    m->views = views_make(&m->memory, p);
    m->bound = NEW(&m->memory, const void *, p->mbs * p->graph->nvalue);
    m->span = NULL;
    m->comm = NEW(&m->memory, const struct comm *, p->nstep);
    for (int64_t i = 0; i < p->nstep; i++)
        m->comm[i] = groups_find(&m->groups, p, &p->step[i]);
    for (int l = 0; l < LANES; l++) {
        struct lane_state *lane = &m->lane[l];
        lane->list = NEW(&m->memory, int64_t, p->length[l]);
        lane->ran = NEW(&m->memory, int64_t, p->ntally);
        lane->pass = (struct pass){
            .run = {.ops = m->options.ops, .stream = &m->stream}};
    }
    for (int64_t i = 0; i < p->nstep; i++)
        m->lane[p->step[i].lane].list[p->step[i].at] = i;
    machine_trace(m, m->trace);
    fill_unwritten(m, had);
    if (first)
        fill_gradients(m);
    return true;
}

bool machine_make(struct arena *a, const struct plan *p,
                  const struct machine_options *options, struct machine **out)
{
    struct machine *m = NEW(a, struct machine, 1);
    m->options = *options;
    m->stream.team = options->team;
    m->groups = groups_make(a, options->rank);
    m->memory = arena_make("run");
    *out = m;
    if (!machine_use(m, p)) {
        machine_free(m);
        return false;
    }
    for (int l = 1; l < LANES && options->lanes; l++)
        m->lane[l].go = queue_make(1);
    if (options->lanes)
        m->workers = workers_start(LANES - 1, lane_main, m);
    return true;
}

void machine_free(struct machine *m)
{
    for (int l = 1; l < LANES; l++)
        if (m->lane[l].go)
            queue_close(m->lane[l].go);
    if (m->workers)
        workers_join(m->workers);
    for (int l = 1; l < LANES; l++)
        if (m->lane[l].go)
            queue_free(m->lane[l].go);
    slab_free(&m->device);
    slab_free(&m->host);
    arena_free(&m->memory);
}

const struct plan *machine_plan(const struct machine *m)
{
    return m->plan;
}

int64_t machine_bytes(const struct machine *m)
{
    return m->device.bytes;
}

/* ---- state, inputs and outputs ---- */

static struct tensor state_view(const struct machine *m, const int *buffer, int param)
{
    REQUIRE(m->plan->ways[m->plan->graph->param[param].unit] == 1);
    return view_param(&m->views, m->device.at, param,
                      buffer[m->plan->graph->param[param].unit]);
}

struct tensor machine_weight(const struct machine *m, int param)
{
    return state_view(m, m->plan->weight, param);
}

struct tensor machine_grad(const struct machine *m, int param)
{
    if (!m->plan->graph->param[param].trainable)
        return tensor_none();
    return state_view(m, m->plan->gradient, param);
}

struct tensor machine_moment(const struct machine *m, int param, int which)
{
    REQUIRE(which >= 0 && which < COUNT(m->plan->moment));
    if (!m->plan->graph->param[param].trainable)
        return tensor_none();
    return state_view(m, m->plan->moment[which], param);
}

/* The buffer; -1: there is no such thing of the param, or it is another stage's. */
static int held_buffer(const struct plan *p, enum held what, int param)
{
    const struct param *x = &p->graph->param[param];
    const int *const held[] = {p->weight, p->gradient, p->moment[0], p->moment[1],
                               p->master};
    int buffer = held[what][x->unit];
    if (what == HELD_MASTER && (buffer < 0 || !x->trainable))
        return p->weight[x->unit];
    return what == HELD_WEIGHT || x->trainable ? buffer : -1;
}

enum dtype plan_held_dtype(const struct plan *p, enum held what, int param)
{
    int buffer = held_buffer(p, what, param);
    return buffer < 0 ? DTYPE_F32 : p->buffer[buffer].dtype;
}

struct tensor machine_own(const struct machine *m, enum held what, int param,
                          struct stretch *part)
{
    const struct plan *p = m->plan;
    const struct param *x = &p->graph->param[param];
    int buffer = held_buffer(p, what, param);
    *part = (struct stretch){0, 0};
    if (buffer < 0)
        return tensor_none();
    const struct buffer *b = &p->buffer[buffer];
    struct flat f = unit_flat(p, x->unit);
    *part = param_own(p, param);
    int64_t from = x->offset + part->from;      /* in the unit, then in the shard */
    char *data = m->device.at + b->offset;
    return tensor_1d(data + (b->shard ? from % f.each : from) * dtype_bytes(b->dtype),
                     b->dtype, part->to - part->from);
}

const struct comm *machine_world(const struct machine *m)
{
    return &m->groups.world;
}

void machine_bind(struct machine *m, int value, int mb, const void *data)
{
    const struct graph *g = m->plan->graph;
    REQUIRE(value >= 0 && value < g->nvalue && g->value[value].node < 0);
    REQUIRE(mb >= 0 && mb < m->plan->mbs);
    m->bound[mb * g->nvalue + value] = data;
}

struct tensor machine_value(const struct machine *m, int value, int mb)
{
    const struct plan *p = m->plan;
    for (int i = 0; i < p->outputs; i++)
        if (p->output[i] == value)
            return view_value(&m->views, m->device.at, value,
                              p->output_buffer[mb * p->outputs + i]);
    BUG("run: %s is not an output of the plan", p->graph->value[value].name);
}

/* ---- modes and evidence ---- */

void machine_check(struct machine *m, bool on)
{
    m->check = on;
}

void machine_trace(struct machine *m, bool on)
{
    if (on && !m->span)
        m->span = NEW(&m->memory, struct span, m->plan->nstep);
    m->trace = on;
}

const struct span *machine_spans(const struct machine *m)
{
    return m->trace ? m->span : NULL;
}

int64_t machine_ran(const struct machine *m, int64_t tally)
{
    int64_t sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += m->lane[l].ran[tally];
    return sum;
}

bool machine_evidence(const struct machine *m)
{
    for (int64_t i = 0; i < m->plan->ntally; i++) {
        const struct tally *t = &m->plan->tally[i];
        int64_t ran = machine_ran(m, i);
        if (ran != m->steps * t->count)
            return fail("run: %s %s.%s ran %lld times in %lld step(s), planned %lld "
                        "each",
                        step_name[t->kind], t->tower, t->name, (long long)ran,
                        (long long)m->steps, (long long)t->count);
    }
    return true;
}
