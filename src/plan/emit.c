/* emit.c - one segment's pass as steps: what it reads and writes, what must be brought
 * back for it, what may leave after it.
 *
 * Stands alone because recompute and offload are decided in these few functions and
 * nowhere else. */
#include "plan/builder.h"

int *builder_ids(struct arena *a, int64_t count)
{
    int *id = NEW(a, int, count);
    memset(id, -1, sizeof *id * (size_t)count);
    return id;
}

int64_t builder_at(const struct builder *b, int mb, int value)
{
    return (int64_t)mb * b->g->nvalue + value;
}

/* ---- buffers and steps ---- */

int buffer_new(struct builder *b, struct buffer buffer)
{
    struct plan *p = b->p;
    buffer.first = buffer.last = buffer.offset = -1;
    GROW(b->arena, p->buffer, p->nbuffer, p->buffer_room);
    p->buffer[p->nbuffer] = buffer;
    return (int)p->nbuffer++;
}

static int buffer_of_value(struct builder *b, enum memory kind, int v, int mb,
                           bool gradient)
{
    const struct graph *g = b->g;
    const struct value *x = &g->value[v];
    int node = x->node >= 0 ? x->node : b->need.last_reader[v];
    return buffer_new(b, (struct buffer){
        .kind = kind, .name = x->name, .component = g->node[node].kind->component,
        .value = v, .unit = -1, .mb = mb, .gradient = gradient, .dtype = x->dtype,
        .bytes = value_bytes(x)});
}

static int tally_of(struct builder *b, enum step_kind kind, bool again,
                    const char *name, const char *tower)
{
    struct plan *p = b->p;
    for (int64_t i = 0; i < p->ntally; i++) {
        const struct tally *t = &p->tally[i];
        if (t->kind == kind && t->again == again && strcmp(t->name, name) == 0 &&
            strcmp(t->tower, tower) == 0)
            return (int)i;
    }
    GROW(b->arena, p->tally, p->ntally, p->tally_room);
    p->tally[p->ntally] = (struct tally){kind, again, name, tower, 0};
    return (int)p->ntally++;
}

struct step *step_new(struct builder *b, enum step_kind kind, enum lane lane,
                      const char *name, const char *tower, bool again)
{
    struct plan *p = b->p;
    GROW(b->arena, p->step, p->nstep, p->step_room);
    struct step *s = &p->step[p->nstep++];
    *s = (struct step){.kind = kind, .lane = lane, .node = -1, .value = -1, .unit = -1,
                       .param = -1, .mb = -1, .work = -1, .wire = DTYPE_F32, .peer = -1,
                       .again = again};
    for (int i = 0; i < MAX_IO; i++)
        s->in[i] = s->out[i] = s->din[i] = s->dout[i] = -1;
    for (int i = 0; i < MAX_WEIGHT; i++)
        s->w[i] = s->dw[i] = -1;
    s->tally = tally_of(b, kind, again, name, tower);
    p->tally[s->tally].count++;
    return s;
}

static struct step *step_of_node(struct builder *b, enum step_kind kind, int node,
                                 int mb, bool again)
{
    const struct node *n = &b->g->node[node];
    struct step *s = step_new(b, kind, n->kind->lane, n->kind->name, n->tower, again);
    s->node = node;
    s->mb = mb;
    if (n->work > 0)
        s->work = buffer_new(b, (struct buffer){
            .kind = MEMORY_WORKSPACE, .name = n->kind->name,
            .component = n->kind->component, .value = -1, .unit = -1, .mb = mb,
            .dtype = DTYPE_U8, .bytes = n->work});
    return s;
}

static struct step *step_of_value(struct builder *b, enum step_kind kind,
                                  enum lane lane, int v, int mb)
{
    const struct value *x = &b->g->value[v];
    struct step *s = step_new(b, kind, lane, x->name, x->tower, false);
    s->value = v;
    s->mb = mb;
    return s;
}

void emit_held(struct builder *b)
{
    for (int v = 0; v < b->g->nvalue; v++) {
        const struct value *x = &b->g->value[v];
        if (!x->held || b->need.portion.chunk[x->node] < 0)
            continue;
        REQUIRE(b->order->mbs == 1);
        int i = buffer_of_value(b, MEMORY_ACTIVATION, v, 0, false);
        b->p->buffer[i].whole = true;
        b->now[builder_at(b, 0, v)] = i;
    }
}

/* ---- values ---- */

/* What a node's outputs, or a node's gradients, are in memory for. */
static enum memory made_by(const struct node *n)
{
    return n->kind->lane == LANE_LAYER ? MEMORY_MESSAGE : MEMORY_ACTIVATION;
}

void emit_load(struct builder *b, int v, int mb)
{
    struct step *s = step_of_value(b, STEP_LOAD, LANE_COPY, v, mb);
    s->out[0] = buffer_of_value(b, MEMORY_INPUT, v, mb, false);
    b->now[builder_at(b, mb, v)] = s->out[0];
    b->stale[builder_at(b, mb, v)] = false;
}

static void forward(struct builder *b, int node, int mb, bool again)
{
    const struct node *n = &b->g->node[node];
    units_acquire_node(b, n);
    struct step *s = step_of_node(b, STEP_FORWARD, node, mb, again);
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] != NONE)
            s->in[i] = b->now[builder_at(b, mb, n->in[i])];
    for (int i = 0; i < n->nout; i++) {
        if (n->out[i] == NONE)
            continue;
        int64_t v = builder_at(b, mb, n->out[i]);
        s->out[i] = b->g->value[n->out[i]].held
                        ? b->now[v]
                        : buffer_of_value(b, made_by(n), n->out[i], mb, false);
        if (again && !b->stale[v])
            continue;                   /* still there: this copy is not looked at */
        b->now[v] = s->out[i];
        b->stale[v] = !again && b->need.stay[n->out[i]] == STAY_AGAIN;
    }
    fill_w(b, s, n);
}

/* Right after its last forward reader a value may leave. */
static void park(struct builder *b, int node, int mb)
{
    for (int v = b->need.park[node]; v >= 0; v = b->need.park_next[v]) {
        b->stale[builder_at(b, mb, v)] = true;
        if (b->need.stay[v] == STAY_RELOAD)
            continue;
        struct step *s = step_of_value(b, STEP_OFFLOAD, LANE_COPY, v, mb);
        s->in[0] = b->now[builder_at(b, mb, v)];
        s->out[0] = buffer_of_value(b, MEMORY_HOST, v, mb, false);
        b->host[builder_at(b, mb, v)] = s->out[0];
    }
}

void emit_forward(struct builder *b, int node, int mb)
{
    forward(b, node, mb, false);
    park(b, node, mb);
}

static void fetch(struct builder *b, int v, int mb)
{
    if (!b->stale[builder_at(b, mb, v)])
        return;
    if (b->need.stay[v] == STAY_RELOAD) {
        emit_load(b, v, mb);
        return;
    }
    struct step *s = step_of_value(b, STEP_FETCH, LANE_COPY, v, mb);
    s->in[0] = b->host[builder_at(b, mb, v)];
    const struct node *maker = &b->g->node[b->g->value[v].node];
    s->out[0] = buffer_of_value(b, made_by(maker), v, mb, false);
    b->now[builder_at(b, mb, v)] = s->out[0];
    b->stale[builder_at(b, mb, v)] = false;
}

void emit_fetch_layer(struct builder *b, int layer, int mb)
{
    for (int v = b->need.fetch[layer]; v >= 0; v = b->need.fetch_next[v])
        fetch(b, v, mb);
}

/* Make a forward value usable by backward.  This is all of recompute: run the producer
 * again, after making its own inputs usable. */
static void restore(struct builder *b, int v, int mb)
{
    if (!b->stale[builder_at(b, mb, v)])
        return;
    if (b->need.stay[v] != STAY_AGAIN) {
        fetch(b, v, mb);
        return;
    }
    int node = b->g->value[v].node;
    const struct node *n = &b->g->node[node];
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] != NONE)
            restore(b, n->in[i], mb);
    forward(b, node, mb, true);
}

static void restore_masked(struct builder *b, const struct node *n, int mb, unsigned in,
                           unsigned out)
{
    for (int i = 0; i < n->nin; i++)
        if ((in >> i & 1) && n->in[i] != NONE)
            restore(b, n->in[i], mb);
    for (int i = 0; i < n->nout; i++)
        if ((out >> i & 1) && n->out[i] != NONE)
            restore(b, n->out[i], mb);
}

static void fill_masked(struct builder *b, struct step *s, const struct node *n, int mb,
                        unsigned in, unsigned out)
{
    for (int i = 0; i < n->nin; i++)
        if ((in >> i & 1) && n->in[i] != NONE)
            s->in[i] = b->now[builder_at(b, mb, n->in[i])];
    for (int i = 0; i < n->nout; i++) {
        if (n->out[i] == NONE)
            continue;
        if (out >> i & 1)
            s->out[i] = b->now[builder_at(b, mb, n->out[i])];
        s->dout[i] = b->grad[builder_at(b, mb, n->out[i])];
    }
}

static void backward(struct builder *b, int node, int mb)
{
    const struct node *n = &b->g->node[node];
    const struct segment *k = n->kind;
    restore_masked(b, n, mb, k->back_in, k->back_out);
    units_acquire_node(b, n);
    struct step *s = step_of_node(b, STEP_BACKWARD, node, mb, false);
    fill_masked(b, s, n, mb, k->back_in, k->back_out);
    for (int i = 0; i < n->nin; i++) {
        if (!need_din(&b->need, n, i))
            continue;
        int *grad = &b->grad[builder_at(b, mb, n->in[i])];
        s->beta[i] = *grad >= 0;        /* the first writer overwrites */
        if (*grad < 0)
            *grad = buffer_of_value(b, made_by(n), n->in[i], mb, true);
        s->din[i] = *grad;
    }
    fill_w(b, s, n);
    if (k->fused)
        fill_dw(b, s, n);
}

static void weight(struct builder *b, int node, int mb)
{
    const struct node *n = &b->g->node[node];
    const struct segment *k = n->kind;
    restore_masked(b, n, mb, k->weight_in, k->weight_out);
    struct step *s = step_of_node(b, STEP_WEIGHT, node, mb, false);
    fill_masked(b, s, n, mb, k->weight_in, k->weight_out);
    fill_dw(b, s, n);
}

void emit_backward(struct builder *b, int node, int mb)
{
    if (b->need.backward[node])
        backward(b, node, mb);
}

void emit_weight(struct builder *b, int node, int mb)
{
    if (b->need.weight[node])
        weight(b, node, mb);
}

/* ---- between stages ---- */

static struct step *step_of_crossing(struct builder *b, enum step_kind kind,
                                     const struct crossing *c, int mb, int stage)
{
    struct step *s = step_of_value(b, kind, LANE_PIPE, c->value, mb);
    s->peer = stage % b->p->stages->ranks;
    s->tag = builder_at(b, mb, c->value);
    return s;
}

void emit_send(struct builder *b, const struct crossing *c, int mb)
{
    struct step *s = step_of_crossing(b, STEP_SEND, c, mb, c->to);
    s->in[0] = b->now[builder_at(b, mb, c->value)];
}

void emit_recv(struct builder *b, const struct crossing *c, int mb)
{
    struct step *s = step_of_crossing(b, STEP_RECV, c, mb, c->from);
    s->out[0] = buffer_of_value(b, MEMORY_MESSAGE, c->value, mb, false);
    b->now[builder_at(b, mb, c->value)] = s->out[0];
}

void emit_send_grad(struct builder *b, const struct crossing *c, int mb)
{
    struct step *s = step_of_crossing(b, STEP_SEND_GRAD, c, mb, c->from);
    s->dout[0] = b->grad[builder_at(b, mb, c->value)];
}

void emit_recv_grad(struct builder *b, const struct crossing *c, int mb)
{
    int *grad = &b->grad[builder_at(b, mb, c->value)];
    int got = buffer_of_value(b, MEMORY_MESSAGE, c->value, mb, true);
    step_of_crossing(b, STEP_RECV_GRAD, c, mb, c->to)->din[0] = got;
    if (*grad < 0) {
        *grad = got;
        return;
    }
    struct step *s = step_of_value(b, STEP_ADD, LANE_COMPUTE, c->value, mb);
    s->in[0] = got;
    s->din[0] = *grad;
    s->beta[0] = 1;
}
