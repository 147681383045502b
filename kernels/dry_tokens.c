/* dry_tokens.c - the dry device where rows are places: tables, routing, the head, and
 * the optimizer.  Apart from dry.c because that holds what every row goes through. */
#include "kernels/dry.h"

int64_t head_words(int64_t V)
{
    int64_t parts = 2 * ((V + 2 * HEAD_WORDS - 1) / (2 * HEAD_WORDS));
    return ((V + parts - 1) / parts + 15) / 16 * 16;    /* whole vectors */
}

int64_t head_work(int64_t T, int64_t D, int64_t V)
{
    int64_t rows = MIN(HEAD_CHUNK, T), words = head_words(V);
    int64_t blocks = (V + words - 1) / words;
    return 4 * rows * (blocks * (words + 3) + D + 1);
}

/* ---- rows of tables ---- */

void dry_embed(struct stream *s, struct tensor id, struct tensor table,
               struct tensor y)
{
    LAW("embed", is_list(id, y.dim[0]), id, y);
    LAW("embed", is_dense(table, table.dim[0], y.dim[1]), table, y);
    LAW("embed", is_dense(y, y.dim[0], y.dim[1]), y);
    ALIKE("embed", table, y);
    WORK(s, 0, id, y, y);
}

void dry_embed_weight(struct stream *s, struct tensor id, struct tensor dy,
                      float beta, struct tensor dtable)
{
    LAW("embed_weight", is_list(id, dy.dim[0]), id, dy);
    LAW("embed_weight", is_dense(dtable, dtable.dim[0], dy.dim[1]), dy, dtable);
    LAW("embed_weight", is_dense(dy, dy.dim[0], dy.dim[1]), dy);
    WORK(s, 0, id, dy, old(beta, dtable), dtable);
}

void dry_take(struct stream *s, struct tensor index, struct tensor from,
              float beta, struct tensor y)
{
    LAW("take", is_list(index, y.dim[0]), index, y);
    LAW("take", is_dense(from, from.dim[0], y.dim[1]), from, y);
    LAW("take", is_dense(y, y.dim[0], y.dim[1]), y);
    ALIKE("take", from, y);
    WORK(s, 0, index, y, old(beta, y), y);
}

void dry_put(struct stream *s, struct tensor index, struct tensor x, struct tensor y)
{
    LAW("put", is_list(index, x.dim[0]), index, x);
    LAW("put", is_2d(x, x.dim[0], y.dim[1]) && is_2d(y, y.dim[0], x.dim[1]), x, y);
    LAW("put", x.dtype == y.dtype, x, y);
    WORK(s, 0, index, x, x);
}

static bool is_places(struct places p)
{
    return p.from[0] >= 0 && p.count[0] >= 0 && p.count[1] >= 0 &&
           p.from[1] >= p.from[0] + p.count[0];
}

void dry_locate(struct stream *s, struct tensor place, struct places own,
                struct tensor y)
{
    LAW("locate", is_list(place, y.dim[0]) && is_list(y, y.dim[0]), place, y);
    LAW("locate", is_places(own), place);
    WORK(s, 0, place, y);
}

void dry_live_places(struct stream *s, struct tensor live, struct places own,
                     struct tensor y)
{
    LAW("live_places", is_list(live, 1) && is_list(y, 1) && is_places(own), live, y);
    WORK(s, 0, live, y);
}

static bool is_square(int64_t n)
{
    int64_t side = 0;
    while (side * side < n)
        side++;
    return side * side == n;
}

void dry_interpolate(struct stream *s, struct tensor x, struct tensor place,
                     struct tensor table, struct tensor y)
{
    LAW("interpolate",
        is_dense(x, x.dim[0], x.dim[1]) && is_dense(y, x.dim[0], x.dim[1]), x, y);
    LAW("interpolate", is_grid(place, x.dim[0], 4), place, x);
    LAW("interpolate", is_dense(table, table.dim[0], x.dim[1]), table, x);
    LAW("interpolate", is_square(table.dim[0]), table);
    ALIKE("interpolate", x, table, y);
    WORK(s, 0, x, place, y, y);
}

void dry_interpolate_weight(struct stream *s, struct tensor dy,
                            struct tensor place, float beta,
                            struct tensor dtable)
{
    LAW("interpolate_weight", is_dense(dy, dy.dim[0], dy.dim[1]), dy);
    LAW("interpolate_weight", is_grid(place, dy.dim[0], 4), place, dy);
    LAW("interpolate_weight", is_dense(dtable, dtable.dim[0], dy.dim[1]), dtable, dy);
    LAW("interpolate_weight", is_square(dtable.dim[0]), dtable);
    WORK(s, 0, dy, place, old(beta, dtable), dtable);
}

/* ---- routing ---- */

void dry_router(struct stream *s, struct tensor z, struct tensor bias,
                struct tensor live, struct tensor pi, struct tensor index,
                struct tensor weight)
{
    int64_t T = z.dim[0], E = z.dim[1], A = index.dim[1];
    LAW("router", is_stat(z, T, E) && is_stat(pi, T, E) && E > 0, z, pi);
    LAW("router", none_or(bias, is_1d(bias, E) && is_wide(bias)), z, bias);
    LAW("router", is_list(live, 1), live);
    LAW("router", is_grid(index, T, A) && is_stat(weight, T, A), z, index, weight);
    LAW("router", A >= 1 && A <= E, z, index);
    WORK(s, 0, z, bias, pi, index, weight);
}

void dry_router_back(struct stream *s, struct tensor z, struct tensor pi,
                     struct tensor index, struct tensor weight,
                     struct tensor live, struct tensor dweight,
                     struct tensor dsum, struct tensor dz2, struct tensor dz)
{
    int64_t T = z.dim[0], E = z.dim[1], A = index.dim[1];
    LAW("router_back", is_stat(z, T, E) && is_stat(pi, T, E) && is_stat(dz, T, E), z,
        pi, dz);
    LAW("router_back", is_grid(index, T, A) && is_stat(weight, T, A), z, index, weight);
    LAW("router_back", none_or(dweight, is_stat(dweight, T, A)), z, dweight);
    LAW("router_back", is_list(live, 1) && none_or(dsum, is_stat(dsum, 1, E)), z, dsum);
    LAW("router_back", none_or(dz2, is_stat(dz2, 1, 1)), dz2);
    WORK(s, 0, z, pi, index, weight, dweight, dsum, dz);
}

void dry_router_sums(struct stream *s, struct tensor z, struct tensor pi,
                     struct tensor index, struct tensor live,
                     struct tensor chosen, struct tensor sum, struct tensor z2,
                     struct tensor rows, struct tensor chosen_out,
                     struct tensor sum_out, struct tensor z2_out,
                     struct tensor rows_out)
{
    int64_t T = z.dim[0], E = z.dim[1], A = index.dim[1];
    LAW("router_sums", is_stat(z, T, E) && is_stat(pi, T, E), z, pi);
    LAW("router_sums", is_grid(index, T, A) && is_list(live, 1), z, index, live);
    LAW("router_sums", none_or(chosen, is_stat(chosen, 1, E)), z, chosen);
    LAW("router_sums", none_or(sum, is_stat(sum, 1, E)), z, sum);
    LAW("router_sums",
        none_or(z2, is_stat(z2, 1, 1)) && none_or(rows, is_stat(rows, 1, 1)), z2, rows);
    LAW("router_sums", is_stat(chosen_out, 1, E) && is_stat(sum_out, 1, E), chosen_out,
        sum_out);
    LAW("router_sums", is_stat(z2_out, 1, 1) && is_stat(rows_out, 1, 1), z2_out,
        rows_out);
    WORK(s, 0, z, pi, index, chosen, sum, chosen_out, sum_out);
}

void dry_router_loss(struct stream *s, struct tensor chosen, struct tensor sum,
                     struct tensor z2, struct tensor rows, struct tensor share,
                     float aux_coef, float z_coef, struct tensor loss,
                     struct tensor aux, struct tensor zloss)
{
    (void)aux_coef, (void)z_coef;
    int64_t E = chosen.dim[1];
    LAW("router_loss", is_stat(chosen, 1, E) && is_stat(sum, 1, E), chosen, sum);
    LAW("router_loss", is_stat(z2, 1, 1) && is_stat(rows, 1, 1) && is_stat(share, 1, 1),
        z2, rows, share);
    LAW("router_loss",
        is_stat(loss, 1, 1) && is_stat(aux, 1, 1) && is_stat(zloss, 1, 1), loss, aux,
        zloss);
    WORK(s, 0, chosen, sum);
}

void dry_router_loss_back(struct stream *s, struct tensor chosen,
                          struct tensor rows, struct tensor share,
                          float aux_coef, float z_coef, struct tensor dsum,
                          struct tensor dz2)
{
    (void)aux_coef, (void)z_coef;
    int64_t E = chosen.dim[1];
    LAW("router_loss_back", is_stat(chosen, 1, E) && is_stat(dsum, 1, E), chosen, dsum);
    LAW("router_loss_back", is_stat(rows, 1, 1) && is_stat(share, 1, 1), rows, share);
    LAW("router_loss_back", is_stat(dz2, 1, 1), dz2);
    WORK(s, 0, chosen, dsum);
}

void dry_sort_rows(struct stream *s, struct tensor index, int experts,
                   struct tensor place, struct tensor source, struct tensor slot,
                   struct tensor bound)
{
    int64_t T = index.dim[0], A = index.dim[1], R = source.dim[0];
    LAW("sort_rows", is_grid(index, T, A) && is_grid(place, T, A), index, place);
    LAW("sort_rows", is_list(source, R) && is_list(slot, R) && R >= T * A, index,
        source, slot);
    LAW("sort_rows", is_list(bound, experts + 1), bound);
    WORK(s, 0, index, place, source, slot, bound);
}

static bool is_flag(struct tensor over, struct tensor over_out)
{
    return none_or(over, is_stat(over, 1, 1)) && is_stat(over_out, 1, 1);
}

void dry_sort_own(struct stream *s, struct tensor index, int first,
                  struct tensor over, struct tensor place, struct tensor source,
                  struct tensor slot, struct tensor bound,
                  struct tensor over_out)
{
    int64_t T = index.dim[0], A = index.dim[1], R = source.dim[0], e = bound.dim[0] - 1;
    LAW("sort_own", is_grid(index, T, A) && is_grid(place, T, A), index, place);
    LAW("sort_own", is_list(source, R) && is_list(slot, R), source, slot);
    LAW("sort_own", is_list(bound, e + 1) && e > 0 && first >= 0, bound);
    LAW("sort_own", is_flag(over, over_out), over, over_out);
    WORK(s, 0, index, place, source, slot, bound);
}

void dry_meet_rows(struct stream *s, struct tensor bounds, int rank,
                   struct tensor over, struct tensor leave, struct tensor arrive,
                   struct tensor order, struct tensor undo, struct tensor bound,
                   struct tensor over_out)
{
    int64_t N = bounds.dim[0], C = order.dim[0], e = bound.dim[0] - 1;
    LAW("meet_rows", is_grid(bounds, N, N * e + 1) && e > 0, bounds, bound);
    LAW("meet_rows", is_list(bound, e + 1) && rank >= 0 && rank < N, bounds, bound);
    LAW("meet_rows", is_list(leave, N + 1) && is_list(arrive, N + 1), leave, arrive);
    LAW("meet_rows", is_list(order, C) && is_list(undo, C), order, undo);
    LAW("meet_rows", is_flag(over, over_out), over, over_out);
    WORK(s, 0, bounds, leave, arrive, order, undo, bound);
}

void dry_clear_rows(struct stream *s, struct tensor bound, struct tensor x)
{
    LAW("clear_rows", is_list(bound, bound.dim[0]) && bound.dim[0] > 0, bound);
    LAW("clear_rows", is_dense(x, x.dim[0], x.dim[1]), x);
    WORK(s, 0, bound);                  /* how many rows is data */
}

void dry_gather_sum(struct stream *s, struct tensor place, struct tensor dy,
                    float beta, struct tensor dx)
{
    int64_t T = dx.dim[0], D = dx.dim[1];
    LAW("gather_sum", is_grid(place, T, place.dim[1]), place, dx);
    LAW("gather_sum", is_dense(dy, dy.dim[0], D) && is_dense(dx, T, D), dy, dx);
    ALIKE("gather_sum", dy, dx);
    WORK(s, 0, place, dy, old(beta, dx), dx);
}

void dry_combine(struct stream *s, struct tensor x, struct tensor place,
                 struct tensor weight, struct tensor y)
{
    int64_t T = y.dim[0], D = y.dim[1], A = place.dim[1];
    LAW("combine", is_dense(x, x.dim[0], D) && is_dense(y, T, D), x, y);
    LAW("combine", is_grid(place, T, A) && is_stat(weight, T, A), place, weight);
    ALIKE("combine", x, y);
    WORK(s, 0, x, place, weight, y);
}

void dry_combine_back(struct stream *s, struct tensor x, struct tensor place,
                      struct tensor weight, struct tensor source,
                      struct tensor slot, struct tensor dy, struct tensor dx,
                      struct tensor dweight)
{
    int64_t T = dy.dim[0], D = dy.dim[1], A = place.dim[1], R = x.dim[0];
    LAW("combine_back", is_dense(x, R, D) && is_dense(dy, T, D), x, dy);
    LAW("combine_back", is_grid(place, T, A) && is_stat(weight, T, A), dy, place,
        weight);
    LAW("combine_back", is_list(source, R) && is_list(slot, R), x, source, slot);
    LAW("combine_back", none_or(dx, is_dense(dx, R, D)), x, dx);
    LAW("combine_back", none_or(dweight, is_stat(dweight, T, A)), dweight, place);
    ALIKE("combine_back", x, dy, dx);
    WORK(s, 0, x, place, weight, source, slot, dy, dx, dweight);
}

/* ---- head ---- */

static void head_laws(const char *op, struct tensor x, struct tensor w,
                      struct tensor which, struct tensor work)
{
    int64_t T = x.dim[0], D = x.dim[1], V = w.dim[0];
    LAW(op, is_dense(x, T, D) && is_dense(w, V, D) && V > 0, x, w);
    ALIKE(op, x, w);
    LAW(op, is_list(which, T), x, which);
    LAW(op, work.dtype == DTYPE_U8 && tensor_count(work) >= head_work(T, D, V), x, w,
        work);
}

void dry_head_loss(struct stream *s, struct tensor x, struct tensor w,
                   struct tensor target, struct tensor scale, struct tensor work,
                   struct tensor loss, struct tensor lse)
{
    head_laws("head_loss", x, w, target, work);
    LAW("head_loss", is_stat(scale, 1, 1) && is_stat(loss, 1, 1), scale, loss);
    LAW("head_loss", is_stat(lse, x.dim[0], 1), x, lse);
    WORK(s, product(x.dim[0], w.dim[0], x.dim[1]), x, w, target, lse);
}

void dry_head_loss_back(struct stream *s, struct tensor x, struct tensor w,
                        struct tensor target, struct tensor scale,
                        struct tensor lse, struct tensor dloss,
                        struct tensor work, float beta_x, struct tensor dx,
                        float beta_w, struct tensor dw)
{
    int64_t T = x.dim[0], D = x.dim[1], V = w.dim[0];
    head_laws("head_loss_back", x, w, target, work);
    LAW("head_loss_back", is_stat(scale, 1, 1) && is_stat(lse, T, 1), scale, lse);
    LAW("head_loss_back", none_or(dloss, is_stat(dloss, 1, 1)), dloss);
    LAW("head_loss_back", none_or(dx, is_dense(dx, T, D)), x, dx);
    LAW("head_loss_back", none_or(dw, is_dense(dw, V, D)), w, dw);
    ALIKE("head_loss_back", x, dx);
    WORK(s, product(T, V, D) * (1 + tensor_is(dx) + tensor_is(dw)), x, w, target, lse,
         old(beta_x, dx), dx, old(beta_w, dw), dw);
}

static void part_head_laws(const char *op, struct tensor x, struct tensor w,
                           struct tensor target, int64_t first, struct tensor part,
                           struct tensor work)
{
    head_laws(op, x, w, target, work);
    LAW(op, is_stat(part, x.dim[0], 2) && first >= 0, x, part);
}

void dry_head_part(struct stream *s, struct tensor x, struct tensor w,
                   struct tensor target, int64_t first, struct tensor work,
                   struct tensor part)
{
    part_head_laws("head_part", x, w, target, first, part, work);
    WORK(s, product(x.dim[0], w.dim[0], x.dim[1]), x, w, target, part);
}

void dry_head_part_back(struct stream *s, struct tensor x, struct tensor w,
                        struct tensor target, int64_t first, struct tensor part,
                        struct tensor dpart, struct tensor work, float beta_x,
                        struct tensor dx, float beta_w, struct tensor dw)
{
    int64_t T = x.dim[0], D = x.dim[1], V = w.dim[0];
    part_head_laws("head_part_back", x, w, target, first, part, work);
    LAW("head_part_back", is_stat(dpart, T, 2), x, dpart);
    LAW("head_part_back", none_or(dx, is_dense(dx, T, D)), x, dx);
    LAW("head_part_back", none_or(dw, is_dense(dw, V, D)), w, dw);
    ALIKE("head_part_back", x, dx);
    WORK(s, product(T, V, D) * (1 + tensor_is(dx) + tensor_is(dw)), x, w, target, part,
         dpart, old(beta_x, dx), dx, old(beta_w, dw), dw);
}

static void head_sum_laws(const char *op, struct tensor part, struct tensor target,
                          struct tensor scale, struct tensor loss)
{
    int64_t T = target.dim[0];
    LAW(op, is_list(target, T) && is_stat(part, part.dim[0], 2), part, target);
    LAW(op, T == 0 || part.dim[0] % T == 0, part, target);
    LAW(op, is_stat(scale, 1, 1) && none_or(loss, is_stat(loss, 1, 1)), scale, loss);
}

void dry_head_sum(struct stream *s, struct tensor part, struct tensor target,
                  struct tensor scale, struct tensor loss)
{
    head_sum_laws("head_sum", part, target, scale, loss);
    WORK(s, 0, part, target, loss);
}

void dry_head_sum_back(struct stream *s, struct tensor part,
                       struct tensor target, struct tensor scale,
                       struct tensor dloss, struct tensor dpart)
{
    head_sum_laws("head_sum_back", part, target, scale, dloss);
    LAW("head_sum_back", is_stat(dpart, part.dim[0], 2), part, dpart);
    WORK(s, 0, part, target, dpart);
}

void dry_head_best(struct stream *s, struct tensor x, struct tensor w,
                   struct tensor want, struct tensor work, struct tensor best,
                   struct tensor logit)
{
    head_laws("head_best", x, w, want, work);
    LAW("head_best", is_list(best, x.dim[0]) && is_stat(logit, x.dim[0], 1), x, best,
        logit);
    WORK(s, product(x.dim[0], w.dim[0], x.dim[1]), x, w, want, best, logit);
}

/* ---- optimizer ---- */

void dry_square_sum(struct stream *s, struct tensor g, float beta,
                    struct tensor out)
{
    (void)beta;
    LAW("square_sum", floating(g) && tensor_is(g) && tensor_is_dense(g), g);
    LAW("square_sum", out.dtype == DTYPE_F64 && tensor_count(out) == 1, out);
    WORK(s, 0, g);
}

void dry_adamw(struct stream *s, struct tensor g, struct adamw step,
               struct tensor w, struct tensor m, struct tensor v)
{
    (void)step;
    int64_t n = w.dim[0];
    LAW("adamw", is_1d(g, n) && is_1d(w, n), g, w);
    LAW("adamw", is_1d(m, n) && is_1d(v, n), w, m, v);
    ALIKE("adamw", m, v);
    WORK(s, 0, g, w, m, v, w, m, v);
}
