/* builder.h - a plan in the making: shared by the files that emit its list.
 *
 * emit.c turns a segment's pass into steps (recompute and offload live there), units.c
 * knows weights and their gradients (gathering and reducing live there), plan.c decides
 * what is visited when. */
#ifndef PLAN_BUILDER_H
#define PLAN_BUILDER_H

#include "plan/need.h"
#include "plan/plan.h"

struct builder {
    struct plan *p;
    struct arena *arena;                /* the plan's */
    const struct graph *g;
    const struct order *order;
    struct policy policy;
    struct need need;
    int *now, *grad, *host;     /* [mbs * values] buffers of the value, of its gradient,
                                 * of its parked copy; -1 none */
    bool *stale;                /* [mbs * values] to be restored before backward */
    int *weight, *wgrad;                /* [units] buffers that segments use, -1 none */
    int *param, *param_next;            /* [units], [params]: a unit's, -1 ends */
    bool *written;                      /* [params] the gradient holds something */
    bool *reduced;                      /* [units] the same of its summed gradient */
    int *left;                          /* [units] visits that will still write it */
};

/* Ids in an arena, all -1. */
int *builder_ids(struct arena *a, int64_t count);
/* Index of a microbatch's value. */
int64_t builder_at(const struct builder *b, int mb, int value);

/* ---- emit.c ---- */

int buffer_new(struct builder *b, struct buffer buffer);
/* The pointer is good until the next step is made. */
struct step *step_new(struct builder *b, enum step_kind kind, enum lane lane,
                      const char *name, const char *tower, bool again);

/* Memory of the values that live on; after that of the units, before all else. */
void emit_held(struct builder *b);
void emit_load(struct builder *b, int value, int mb);
/* Forward of a node, and what leaves once it has run. */
void emit_forward(struct builder *b, int node, int mb);
/* Backward pass of a node, and what it needs back first; the same of its weight pass.
 * Nothing where the node has none. */
void emit_backward(struct builder *b, int node, int mb);
void emit_weight(struct builder *b, int node, int mb);
/* A value, or its gradient, to or from another rank. */
void emit_send(struct builder *b, const struct crossing *c, int mb);
void emit_recv(struct builder *b, const struct crossing *c, int mb);
void emit_send_grad(struct builder *b, const struct crossing *c, int mb);
void emit_recv_grad(struct builder *b, const struct crossing *c, int mb);
/* Bring back what backward of this layer wants from host memory. */
void emit_fetch_layer(struct builder *b, int layer, int mb);

/* ---- units.c ---- */

void units_begin(struct builder *b, struct arena *scratch, const struct plan_options *o,
                 bool backward);
void units_acquire(struct builder *b, int layer, enum direction way);
void units_acquire_node(struct builder *b, const struct node *n);
/* Gathered weights of unit u are not used again before they are gathered again. */
void unit_release(struct builder *b, int u);
/* A backward visit of this layer will come; told of all before the first. */
void units_expect(struct builder *b, int layer);
void units_reduce(struct builder *b, int layer);
void units_end(struct builder *b);      /* gradients that nothing reached are zeroed */
void fill_w(const struct builder *b, struct step *s, const struct node *n);
void fill_dw(struct builder *b, struct step *s, const struct node *n);

#endif
