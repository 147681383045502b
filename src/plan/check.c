/* check.c - an independent look at a plan: replay it symbolically, believe nothing.
 *
 * Stands alone because the passes before it must not be trusted with their own proof:
 * it reads steps, places and waits only, never lifetimes or what the builder knew.
 * Each buffer has a state; each step moves states on or breaks a promise. */
#include "plan/owners.h"
#include "plan/plan.h"

struct state {
    int64_t writer;                     /* last step that wrote it; -1: nobody yet */
    int64_t touch[LANES];               /* last step of each lane that touched it, -1 */
    bool filled;                        /* holds something */
    bool read;
    int taken;                          /* buffer that has (some of) its memory; -1 */
};

struct clock { int64_t at[LANES]; };    /* steps of each lane known to be done */

enum { PASSES = 3 };                    /* forward, backward, weight */

struct checker {
    const struct plan *p;
    const struct graph *g;
    struct state *state;                /* [buffers] */
    struct clock *after;                /* [steps] known when the step is done */
    int64_t *step_at[LANES];            /* step by lane and position */
    int64_t seen[LANES];
    struct clock now;                   /* known when the step at hand begins */
    int64_t step;
    struct owners device, host;
    bool *ran[PASSES];                  /* [mbs * nodes] */
    int *grad;                          /* [mbs * values] buffer of the gradient, -1 */
    int *dw;                            /* [params] buffer its gradient is in, -1 */
    bool *written;                      /* [params] by a weight pass */
    bool *reduced, *summed;             /* [units] a shard holds some; holds all */
    bool *tied;                         /* [units] summed over stages, too */
};

static bool broken(const struct checker *c, const char *what, int buffer)
{
    struct arena a = arena_make("plan check");
    struct text t = text_make(&a);
    plan_explain_step(c->p, c->step, &t);
    const struct buffer *x = buffer >= 0 ? &c->p->buffer[buffer] : NULL;
    if (x)
        fail("plan: step %s: %s: buffer %d (%s%s, microbatch %d)", t.at, what, buffer,
             x->gradient ? "gradient of " : "", x->name, x->mb);
    else
        fail("plan: step %s: %s", t.at, what);
    arena_free(&a);
    return fail_kind(FAULT_BUG);
}

/* ---- lanes: what is known to be done ---- */

static bool known(const struct checker *c, int64_t step)
{
    const struct step *d = &c->p->step[step];
    return c->now.at[d->lane] > d->at;
}

static bool begin_step(struct checker *c, const struct step *s)
{
    if (s->at != c->seen[s->lane])
        return broken(c, "is not the next of its lane", -1);
    c->now = (struct clock){{0}};
    if (s->at > 0)
        c->now = c->after[c->step_at[s->lane][s->at - 1]];
    for (int l = 0; l < LANES; l++) {
        if (s->wait[l] == 0)
            continue;
        if (s->wait[l] < 0 || s->wait[l] > c->seen[l])
            return broken(c, "waits for a step that comes later", -1);
        const struct clock *d = &c->after[c->step_at[l][s->wait[l] - 1]];
        for (int k = 0; k < LANES; k++)
            c->now.at[k] = MAX(c->now.at[k], d->at[k]);
    }
    return true;
}

static void end_step(struct checker *c, const struct step *s)
{
    c->step_at[s->lane][c->seen[s->lane]++] = c->step;
    c->now.at[s->lane] = s->at + 1;
    c->after[c->step] = c->now;
}

/* ---- memory ---- */

static struct owners *slab_of(struct checker *c, const struct buffer *x)
{
    return x->kind == MEMORY_HOST ? &c->host : &c->device;
}

/* A buffer's first touch takes its memory from whoever had it. */
static bool take_memory(struct checker *c, int buffer)
{
    const struct buffer *x = &c->p->buffer[buffer];
    struct owners *o = slab_of(c, x);
    int64_t to = x->offset + x->bytes;
    int64_t end = x->kind == MEMORY_HOST ? c->p->host_bytes : c->p->bytes;
    if (x->offset < 0 || to > end || x->offset % ALIGN != 0)
        return broken(c, "lies outside its slab or is not aligned", buffer);
    int64_t i = owners_find(o, x->offset);
    for (; i < o->count && o->at[i].from < to; i++) {
        int former = o->at[i].buffer;
        if (c->p->buffer[former].whole)
            return broken(c, "takes memory that belongs to the run", buffer);
        c->state[former].taken = buffer;
        for (int l = 0; l < LANES; l++) {
            int64_t touch = c->state[former].touch[l];
            if (touch >= 0 && !known(c, touch))
                return broken(c, "does not wait for the former user of its memory",
                              former);
        }
    }
    owners_take(o, x->offset, to, buffer);
    return true;
}

static bool touch_one(struct checker *c, struct touch t, bool first)
{
    struct state *s = &c->state[t.buffer];
    if (first && !c->p->buffer[t.buffer].whole && !take_memory(c, t.buffer))
        return false;
    if (s->taken >= 0)
        return broken(c, "uses memory that was given away", t.buffer);
    if (!t.write && !s->filled)
        return broken(c, "reads what nobody wrote", t.buffer);
    if (s->writer >= 0 && s->writer != c->step && !known(c, s->writer))
        return broken(c, "does not wait for the writer", t.buffer);
    for (int l = 0; l < LANES && t.write; l++)
        if (s->touch[l] >= 0 && s->touch[l] != c->step && !known(c, s->touch[l]))
            return broken(c, "does not wait for a reader before writing", t.buffer);
    return true;
}

static bool touch_all(struct checker *c, const struct step *s)
{
    struct touch touch[MAX_TOUCH];
    int n = step_touches(s, touch);
    for (int i = 0; i < n; i++)
        if (touch[i].buffer >= c->p->nbuffer)
            return broken(c, "names a buffer that does not exist", -1);
    for (int i = 0; i < n; i++) {
        bool first = true;
        for (int l = 0; l < LANES; l++)
            first &= c->state[touch[i].buffer].touch[l] < 0;
        if (!touch_one(c, touch[i], first))
            return false;
        c->state[touch[i].buffer].touch[s->lane] = c->step;
    }
    for (int i = 0; i < n; i++) {
        struct state *x = &c->state[touch[i].buffer];
        if (touch[i].write) {
            x->writer = c->step;
            x->filled = true;
        } else {
            x->read = true;
        }
    }
    return true;
}

/* ---- meaning ---- */

static bool holds(const struct checker *c, int buffer, int value, int mb, bool gradient)
{
    const struct buffer *x = &c->p->buffer[buffer];
    return x->value == value && x->mb == mb && x->gradient == gradient &&
           x->bytes == value_bytes(&c->g->value[value]);
}

static bool check_weights(struct checker *c, const struct step *s, const struct node *n)
{
    for (int i = 0; i < n->nw; i++) {
        const struct param *w = n->w[i] != NONE ? &c->g->param[n->w[i]] : NULL;
        if (s->w[i] >= 0 && (!w || c->p->buffer[s->w[i]].unit != w->unit ||
                             c->p->buffer[s->w[i]].gradient))
            return broken(c, "is given another unit's weights", s->w[i]);
        if (s->kind != STEP_WEIGHT && w && s->w[i] < 0)
            return broken(c, "has no weights", -1);
        if (s->dw[i] < 0)
            continue;
        const struct buffer *x = &c->p->buffer[s->dw[i]];
        if (!w || !w->trainable || x->unit != w->unit || !x->gradient)
            return broken(c, "writes a gradient where there is none", s->dw[i]);
        if (x->whole && c->summed[w->unit])
            return broken(c, "changes a gradient that was summed", s->dw[i]);
        bool adds = c->dw[n->w[i]] == s->dw[i];
        if (s->beta_w[i] != (adds ? 1 : 0))
            return broken(c, adds ? "overwrites a weight gradient, beta should be 1"
                                  : "adds to a weight gradient that is not there yet",
                          s->dw[i]);
        c->dw[n->w[i]] = s->dw[i];
        c->written[n->w[i]] = true;
    }
    return true;
}

/* The gradients a backward step writes; before its touches are booked. */
static bool check_din(struct checker *c, const struct step *s, const struct node *n)
{
    for (int i = 0; i < n->nin; i++) {
        if (s->din[i] < 0)
            continue;
        if (n->in[i] == NONE || !holds(c, s->din[i], n->in[i], s->mb, true))
            return broken(c, "writes the gradient of something else", s->din[i]);
        int *grad = &c->grad[s->mb * c->g->nvalue + n->in[i]];
        bool adds = *grad == s->din[i];
        if (*grad >= 0 && !adds)
            return broken(c, "starts a second gradient of the same value", s->din[i]);
        if (s->beta[i] != (adds ? 1 : 0))
            return broken(c, adds ? "overwrites a gradient, beta should be 1"
                                  : "adds to a gradient that is not there yet",
                          s->din[i]);
        if (c->state[s->din[i]].read)
            return broken(c, "changes a gradient that was used already", s->din[i]);
        *grad = s->din[i];
    }
    return true;
}

static bool check_reads(const struct checker *c, const struct step *s,
                        const struct node *n)
{
    const struct segment *k = n->kind;
    bool forward = s->kind == STEP_FORWARD, back = s->kind == STEP_BACKWARD;
    unsigned in = forward ? ~0u : back ? k->back_in : k->weight_in;
    unsigned out = forward ? 0 : back ? k->back_out : k->weight_out;
    for (int i = 0; i < n->nin; i++) {
        if (n->in[i] == NONE || !(in >> i & 1))
            continue;
        if (s->in[i] < 0 || !holds(c, s->in[i], n->in[i], s->mb, false))
            return broken(c, "does not get its input", s->in[i]);
    }
    for (int i = 0; i < n->nout; i++) {
        if (n->out[i] == NONE)
            continue;
        if (((out >> i & 1) || forward) &&
            (s->out[i] < 0 || !holds(c, s->out[i], n->out[i], s->mb, false)))
            return broken(c, "does not get its output", s->out[i]);
        bool held = c->g->value[n->out[i]].held;
        if (forward && held != c->p->buffer[s->out[i]].whole)
            return broken(c, "loses a value that lives on", s->out[i]);
        if (forward && !held && c->state[s->out[i]].filled)
            return broken(c, "writes over a value", s->out[i]);
        if (!forward && s->dout[i] != c->grad[s->mb * c->g->nvalue + n->out[i]])
            return broken(c, "is not given the gradient of its output", s->dout[i]);
    }
    return true;
}

static bool check_node(struct checker *c, const struct step *s)
{
    if (s->node < 0 || s->node >= c->g->nnode || s->mb < 0 || s->mb >= c->p->mbs)
        return broken(c, "names no segment or no microbatch", -1);
    const struct node *n = &c->g->node[s->node];
    int64_t cell = s->mb * c->g->nnode + s->node;
    int pass = s->kind == STEP_FORWARD ? 0 : s->kind == STEP_BACKWARD ? 1 : 2;
    if (c->ran[pass][cell] != s->again)
        return broken(c, s->again ? "runs again what never ran" : "runs twice", -1);
    c->ran[pass][cell] = true;
    if ((n->work > 0) != (s->work >= 0) ||
        (s->work >= 0 && c->p->buffer[s->work].bytes < n->work))
        return broken(c, "has no room to work in", s->work);
    return check_reads(c, s, n) && check_din(c, s, n) && check_weights(c, s, n);
}

static bool check_move(struct checker *c, const struct step *s)
{
    int from = s->in[0], to = s->out[0];
    if (s->kind != STEP_LOAD && (from < 0 || !holds(c, from, s->value, s->mb, false)))
        return broken(c, "moves something else", from);
    if (to < 0 || !holds(c, to, s->value, s->mb, false))
        return broken(c, "moves to somewhere else", to);
    bool to_host = c->p->buffer[to].kind == MEMORY_HOST;
    if (to_host != (s->kind == STEP_OFFLOAD) || c->state[to].filled)
        return broken(c, "moves to the wrong memory or over a value", to);
    return true;
}

/* The axes a collective of the unit must speak along. */
static unsigned unit_along(const struct checker *c, const struct step *s)
{
    const struct unit *u = &c->g->unit[s->unit];
    if (s->kind == STEP_GATHER || s->in[0] != s->out[0])
        return unit_shard_axes(u);
    return c->p->ways[s->unit] > 1 ? ON(AXIS_REPLICATE) : unit_holder_axes(u);
}

static int unit_copies(const struct checker *c, int unit)
{
    const struct unit *u = &c->g->unit[unit];
    unsigned along = c->p->ways[unit] > 1 ? ON(AXIS_REPLICATE) : unit_holder_axes(u);
    return c->g->mesh ? view_group_size(mesh_view(c->g->mesh, u->experts), along) : 1;
}

/* What comes from or goes to another stage. */
static bool check_message(struct checker *c, const struct step *s)
{
    const struct value *v = &c->g->value[s->value];
    int *grad = &c->grad[s->mb * c->g->nvalue + s->value], to = s->din[0];
    if (!c->p->stages || v->node < 0 || (s->kind != STEP_ADD && s->peer < 0))
        return broken(c, "is no message of this rank", -1);
    bool made = c->ran[0][s->mb * c->g->nnode + v->node];
    switch (s->kind) {
    case STEP_SEND:
        return (made && s->in[0] >= 0 && holds(c, s->in[0], s->value, s->mb, false)) ||
               broken(c, "sends something else", s->in[0]);
    case STEP_RECV:
        return (!made && s->out[0] >= 0 && !c->state[s->out[0]].filled &&
                holds(c, s->out[0], s->value, s->mb, false)) ||
               broken(c, "receives something else", s->out[0]);
    case STEP_SEND_GRAD:
        return (!made && s->dout[0] >= 0 && s->dout[0] == *grad) ||
               broken(c, "sends another gradient", s->dout[0]);
    case STEP_RECV_GRAD:
        if (!made || to < 0 || c->state[to].filled ||
            !holds(c, to, s->value, s->mb, true))
            return broken(c, "receives another gradient", to);
        *grad = *grad < 0 ? to : *grad;
        return true;
    default:
        if (s->in[0] < 0 || to < 0 || to != *grad || c->state[to].read ||
            s->in[0] == to || !holds(c, s->in[0], s->value, s->mb, true))
            return broken(c, "adds something else", to);
        return s->beta[0] == 1 ||
               broken(c, "overwrites a gradient, beta should be 1", to);
    }
}

static bool check_tie(struct checker *c, const struct step *s)
{
    if (c->p->gradient[s->unit] < 0 || s->out[0] != c->p->gradient[s->unit] ||
        s->in[0] != s->out[0] || c->tied[s->unit])
        return broken(c, "sums something else over stages", s->out[0]);
    c->tied[s->unit] = c->summed[s->unit] = true;
    return true;
}

/* What is rounded to travel has a place of its own to travel from. */
static bool check_wire(const struct checker *c, const struct step *s)
{
    bool sum = s->kind == STEP_REDUCE;
    enum dtype has = unit_gradient(c->p, s->unit);
    if (s->wire != (sum ? unit_wire(c->p, s->unit) : s->kind == STEP_TIE ? has : 0))
        return broken(c, "travels in another type", -1);
    bool narrow = sum && s->wire != has;
    int64_t count = narrow ? c->p->buffer[s->in[0]].bytes / dtype_bytes(has) : 0;
    if (narrow != (s->work >= 0) ||
        (narrow && c->p->buffer[s->work].bytes < count * dtype_bytes(s->wire)))
        return broken(c, "has no room for what it sends", s->work);
    return true;
}

static bool check_unit(struct checker *c, const struct step *s)
{
    if (!check_wire(c, s))
        return false;
    if (s->kind == STEP_TIE)
        return check_tie(c, s);
    if (s->kind != STEP_ZERO && s->along != unit_along(c, s))
        return broken(c, "speaks to other ranks than those that hold the unit", -1);
    if (s->kind == STEP_GATHER)
        return s->in[0] >= 0 && s->in[0] == c->p->weight[s->unit] && s->out[0] >= 0 &&
                       c->p->buffer[s->out[0]].unit == s->unit
                   ? true
                   : broken(c, "gathers something else", s->out[0]);
    if (s->kind == STEP_REDUCE) {
        if (s->out[0] < 0 || s->out[0] != c->p->gradient[s->unit])
            return broken(c, "reduces to somewhere else", s->out[0]);
        if (c->summed[s->unit])
            return broken(c, "changes a gradient that was summed", s->out[0]);
        if (s->in[0] == s->out[0]) {
            c->summed[s->unit] = true;
            return true;
        }
        if (s->beta[0] != (c->reduced[s->unit] ? 1 : 0))
            return broken(c, "loses or invents a reduced gradient", s->out[0]);
        c->reduced[s->unit] = true;
        return true;
    }
    if (s->param < 0) {
        c->reduced[s->unit] = true;
        return true;
    }
    if (c->dw[s->param] == s->dw[0])
        return broken(c, "zeroes a gradient that is there", s->dw[0]);
    c->dw[s->param] = s->dw[0];
    return true;
}

static bool check_step(struct checker *c, const struct step *s)
{
    if (!begin_step(c, s))
        return false;
    bool ok = true;
    switch (s->kind) {
    case STEP_FORWARD: case STEP_BACKWARD: case STEP_WEIGHT:
        ok = check_node(c, s);
        break;
    case STEP_LOAD: case STEP_OFFLOAD: case STEP_FETCH:
        ok = check_move(c, s);
        break;
    case STEP_ZERO: case STEP_GATHER: case STEP_REDUCE: case STEP_TIE:
        ok = check_unit(c, s);
        break;
    case STEP_SEND: case STEP_RECV: case STEP_SEND_GRAD: case STEP_RECV_GRAD:
    case STEP_ADD:
        ok = check_message(c, s);
        break;
    case STEP_KINDS:
        return broken(c, "is of no known kind", -1);
    }
    ok = ok && touch_all(c, s);
    end_step(c, s);
    return ok;
}

/* ---- the whole ---- */

/* A segment's pass runs for every microbatch or for none. */
static bool check_complete(const struct checker *c)
{
    for (int pass = 0; pass < PASSES; pass++)
        for (int64_t k = 0; k < c->g->nnode; k++)
            for (int mb = 1; mb < c->p->mbs; mb++)
                if (c->ran[pass][mb * c->g->nnode + k] != c->ran[pass][k])
                    return fail("plan: %s of %s, layer %d, is not run in every "
                                "microbatch", step_name[pass], c->g->node[k].kind->name,
                                c->g->node[k].layer);
    return true;
}

static bool check_results(const struct checker *c, bool backward)
{
    const struct plan *p = c->p;
    for (int i = 0; i < p->mbs * p->outputs; i++) {
        int buffer = p->output_buffer[i];
        int node = c->g->value[p->output[i % p->outputs]].node;
        if (buffer < 0 && p->stages && !c->ran[0][i / p->outputs * c->g->nnode + node])
            continue;                   /* another stage's */
        if (buffer < 0 || !c->state[buffer].filled || c->state[buffer].taken >= 0 ||
            !holds(c, buffer, p->output[i % p->outputs], i / p->outputs, false))
            return fail("plan: output %s of microbatch %d is not there at the end",
                        c->g->value[p->output[i % p->outputs]].name, i / p->outputs);
    }
    for (int64_t i = 0; i < p->nbuffer; i++) {
        const struct buffer *x = &p->buffer[i];
        if (x->unit >= 0 && x->gradient && !x->whole && c->state[i].filled &&
            !c->state[i].read)
            return fail("plan: a gradient of unit %s, layer %d, is never reduced",
                        x->name, c->g->unit[x->unit].layer);
    }
    for (int64_t i = 0; i < p->nbuffer; i++)
        if (p->buffer[i].value >= 0 && p->buffer[i].gradient && c->state[i].filled &&
            !c->state[i].read)
            return fail("plan: the gradient of %s, microbatch %d, is never used",
                        p->buffer[i].name, p->buffer[i].mb);
    for (int u = 0; u < c->g->nunit && backward && p->stages; u++)
        if (p->gradient[u] >= 0 && !c->tied[u] &&
            stages_holders(p->stages, c->g, u, NULL) > 1)
            return fail("plan: the gradient of unit %s, layer %d, lacks other stages' "
                        "share", c->g->unit[u].name, c->g->unit[u].layer);
    for (int64_t i = 0; i < c->g->nparam && backward; i++) {
        const struct param *x = &c->g->param[i];
        int whole = p->gradient[x->unit];
        if (x->trainable && c->dw[i] != whole && !c->reduced[x->unit])
            return fail("plan: parameter %s has no gradient at the end", x->name);
        if (x->trainable && c->written[i] && !c->summed[x->unit] &&
            unit_copies(c, x->unit) > 1)
            return fail("plan: the gradient of %s is not summed over its copies",
                        x->name);
    }
    return true;
}

static bool check_whole_memory(struct checker *c)
{
    for (int64_t i = 0; i < c->p->nbuffer; i++) {
        const struct buffer *x = &c->p->buffer[i];
        if (!x->whole)
            continue;
        if (x->offset + x->bytes > c->p->state_bytes)
            return fail("plan: state buffer %s lies outside the state", x->name);
        if (x->bytes > 0 && !take_memory(c, (int)i))
            return false;
        c->state[i].filled = x->kind != MEMORY_GRADIENT;
    }
    return true;
}

static bool check_all(struct checker *c)
{
    const struct plan *p = c->p;
    bool backward = false;
    if (!check_whole_memory(c))
        return false;
    for (c->step = 0; c->step < p->nstep; c->step++) {
        const struct step *s = &p->step[c->step];
        backward |= s->kind == STEP_BACKWARD || s->kind == STEP_WEIGHT;
        if (!check_step(c, s))
            return false;
    }
    return check_complete(c) && check_results(c, backward);
}

bool plan_check(const struct plan *p)
{
    const struct graph *g = p->graph;
    struct arena a = arena_make("plan check");
    struct checker c = {.p = p, .g = g, .device = owners_make(&a),
                        .host = owners_make(&a)};
    c.state = NEW(&a, struct state, p->nbuffer);
    for (int64_t i = 0; i < p->nbuffer; i++) {
        c.state[i].writer = c.state[i].taken = -1;
        for (int l = 0; l < LANES; l++)
            c.state[i].touch[l] = -1;
    }
    c.after = NEW(&a, struct clock, p->nstep);
    for (int l = 0; l < LANES; l++)
        c.step_at[l] = NEW(&a, int64_t, p->nstep);
    for (int i = 0; i < PASSES; i++)
        c.ran[i] = NEW(&a, bool, p->mbs * g->nnode);
    c.grad = NEW(&a, int, p->mbs * g->nvalue);
    memset(c.grad, -1, sizeof *c.grad * (size_t)(p->mbs * g->nvalue));
    c.dw = NEW(&a, int, g->nparam);
    memset(c.dw, -1, sizeof *c.dw * (size_t)g->nparam);
    c.reduced = NEW(&a, bool, g->nunit);
    c.summed = NEW(&a, bool, g->nunit);
    c.tied = NEW(&a, bool, g->nunit);
    c.written = NEW(&a, bool, g->nparam);
    bool ok = check_all(&c);
    arena_free(&a);
    return ok || fail_kind(FAULT_BUG);
}
