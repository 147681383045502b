/* exchange.c - rows to the ranks they are for, by lists and counts that are data.
 *
 * Stands alone because, unlike moves.c, which row goes where is known to no plan:
 * tokens go to the experts chosen for them, images to the ranks that have time. */
#include "layers/layers.h"

/* ---- pick: in x order undo, out y = rows of x that order names, 0 where -1 ---- */

void pick_forward(struct run *r)
{
    r->ops->take(r->stream, r->in[1], r->in[0], 0, r->out[0]);
}

void pick_backward(struct run *r)
{
    r->ops->take(r->stream, r->in[2], r->dout[0], r->beta[0], r->din[0]);
}

/* ---- exchange: in x leave arrive, out y.  Rows past the end are 0 ---- */

struct exchange { int64_t even; };      /* rows for each in a plan without data */

static void counts(struct tensor bound, struct tensor rows, int64_t even, int64_t *to)
{
    const int32_t *b = bound.data;
    for (int64_t i = 0; i + 1 < bound.dim[0]; i++)
        to[i] = (b ? b[i + 1] - b[i] : even) * rows.dim[1];
}

static void exchange(struct run *r, struct tensor x, struct tensor leave,
                     struct tensor arrive, struct tensor y)
{
    int64_t out[MAX_MEMBERS], in[MAX_MEMBERS];
    const struct exchange *a = r->attr;
    counts(leave, x, a->even, out);
    counts(arrive, y, a->even, in);
    comm_all_to_all_counts(r->comm, x.dtype, x.data, out, y.data, in);
    r->ops->clear_rows(r->stream, arrive, y);
}

void exchange_forward(struct run *r)
{
    exchange(r, r->in[0], r->in[1], r->in[2], r->out[0]);
}

void exchange_backward(struct run *r)
{
    REQUIRE(r->beta[0] == 0);           /* its only reader */
    exchange(r, r->dout[0], r->in[2], r->in[1], r->din[0]);
}

/* ---- recording ---- */

static int moved(struct graph *g, const struct segment *kind, const char *name,
                 const int *in, int64_t rows, const void *attr)
{
    int layer = g->layers - 1;
    int y = graph_value(g, name, layer, rows, g->value[in[0]].dim[1]);
    graph_node(g, kind, layer, in, LIST(y), EMPTY, attr, 0);
    return y;
}

int pick_record(struct graph *g, const struct segment *kind, const char *name, int x,
                 int order, int undo)
{
    return moved(g, kind, name, LIST(x, order, undo), g->value[order].dim[0], NULL);
}

int exchange_record(struct graph *g, const struct segment *kind, const char *name,
                    int x, int leave, int arrive, int64_t rows, int64_t even)
{
    struct exchange a = {even};
    REQUIRE(g->value[leave].dim[0] <= MAX_MEMBERS + 1);
    return moved(g, kind, name, LIST(x, leave, arrive), rows,
                 graph_attr(g, &a, sizeof a));
}
