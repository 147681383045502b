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
    const int *shards;                  /* [units] or NULL */
    int *now, *grad, *host;     /* [mbs * values] buffers of the value, of its gradient,
                                 * of its parked copy; -1 none */
    bool *stale;                /* [mbs * values] to be restored before backward */
    int *weight, *wgrad;                /* [units] buffers that segments use, -1 none */
    int *param, *param_next;            /* [units], [params]: a unit's, -1 ends */
    bool *written;                      /* [params] the gradient holds something */
    bool *reduced;                      /* [units] the same of its sharded gradient */
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

void emit_load(struct builder *b, int value, int mb);
/* Forward of a node, and what leaves once it has run. */
void emit_forward(struct builder *b, int node, int mb);
/* Backward and weight passes of a node, and what they need back first. */
void emit_backward(struct builder *b, int node, int mb);
/* Bring back what backward of this layer wants from host memory. */
void emit_fetch_layer(struct builder *b, int layer, int mb);

/* ---- units.c ---- */

void units_begin(struct builder *b, struct arena *scratch, const struct plan_options *o,
                 bool backward);
void units_acquire(struct builder *b, int layer, bool backward);
void units_acquire_node(struct builder *b, const struct node *n);
/* Gathered weights of unit u are not used again before they are gathered again. */
void unit_release(struct builder *b, int u);
void units_reduce(struct builder *b, int layer);
void units_end(struct builder *b);      /* gradients that nothing reached are zeroed */
void fill_w(const struct builder *b, struct step *s, const struct node *n);
void fill_dw(struct builder *b, struct step *s, const struct node *n);

#endif
