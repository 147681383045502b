/* state_case.h - a training state whose every number says which step, tensor and place
 * it is of, saved by any number of ranks in any layout, and checked in any other. */
#ifndef TESTS_UNIT_STATE_CASE_H
#define TESTS_UNIT_STATE_CASE_H

#include "check.h"

#include "base/text.h"
#include "checkpoint/state.h"
#include "parallel/world.h"

#include <inttypes.h>

/* Dims are cut into parts[] each, and every box into `ways` stretches. */
struct case_layout { int parts[3], ways; };

static const struct case_tensor {
    const char *name;
    enum dtype dtype;
    int ndim;
    int64_t dim[3];
} case_tensors[] = {
    {"model.w", DTYPE_F32, 3, {4, 6, 10}},
    {"first.model.w", DTYPE_F64, 3, {4, 6, 2}},
    {"u", DTYPE_U8, 1, {5}},            /* divided by stretches alone */
};
enum { CASE_TENSORS = COUNT(case_tensors) };

static inline int case_ranks(const struct case_layout *l)
{
    return l->parts[0] * l->parts[1] * l->parts[2] * l->ways;
}

static inline double case_value(int64_t step, int tensor, int64_t place)
{
    return (double)((step * 31 + tensor * 7 + place) % 251);
}

static inline void case_put(enum dtype d, void *to, int64_t i, double x)
{
    if (d == DTYPE_F32)
        ((float *)to)[i] = (float)x;
    else if (d == DTYPE_F64)
        ((double *)to)[i] = x;
    else
        ((uint8_t *)to)[i] = (uint8_t)x;
}

/* What `rank` has of tensor i, without its numbers. */
static inline struct state_piece case_piece(const struct case_layout *l, int rank,
                                            int i)
{
    const struct case_tensor *t = &case_tensors[i];
    struct state_piece p = {.name = t->name, .dtype = t->dtype, .box.ndim = t->ndim};
    int ways = t->ndim == 1 ? case_ranks(l) : l->ways, at = rank % ways;
    rank /= ways;
    for (int d = t->ndim - 1; d >= 0; d--) {
        int parts = t->ndim == 1 ? 1 : l->parts[d];
        p.box.dim[d] = t->dim[d];
        p.box.size[d] = t->dim[d] / parts;
        p.box.from[d] = rank % parts * p.box.size[d];
        rank /= parts;
    }
    struct flat f = flat_make(box_count(&p.box), ways, 1);
    p.part = flat_part(&f, at, 0, f.count);
    return p;
}

/* The pieces a rank writes of a step's state, numbers and all. */
static inline int64_t case_pieces(struct arena *a, const struct case_layout *l,
                                  int rank, int64_t step, struct state_piece *out)
{
    int64_t n = 0;
    for (int i = 0; i < CASE_TENSORS; i++) {
        struct state_piece p = case_piece(l, rank, i);
        if (p.part.from == p.part.to)
            continue;
        p.data = arena_push(a, (size_t)state_piece_bytes(&p));
        for (int64_t k = p.part.from; k < p.part.to; k++)
            case_put(p.dtype, p.data, k - p.part.from,
                     case_value(step, i, box_global(&p.box, k)));
        out[n++] = p;
    }
    return n;
}

struct case_run {
    const struct case_layout *layout;
    const char *root;
    int64_t step;
    int keep;
};

static inline struct comm case_world(const struct rank *r)
{
    int *member = NEW(&((struct rank *)r)->arena, int, r->ranks);
    for (int i = 0; i < r->ranks; i++)
        member[i] = i;
    return world_comm(r, "case", member, r->ranks, 0);
}

static bool case_save_rank(struct rank *r, void *arg)
{
    const struct case_run *run = arg;
    struct state_piece piece[CASE_TENSORS];
    struct comm world = case_world(r);
    int64_t n = case_pieces(&r->arena, run->layout, r->rank, run->step, piece);
    char *meta = arena_text(&r->arena, "{\"rows\":%" PRId64 ",\"real\":0.1}",
                            7 * run->step);
    return state_save(&world, run->root, run->step, piece, n, meta, run->keep);
}

static inline bool case_save(const struct case_layout *l, const char *root,
                             int64_t step, int keep)
{
    struct case_run run = {l, root, step, keep};
    return world_run(case_ranks(l), 0, case_save_rank, &run);
}

/* Step `step` is there, sound, and what was saved, as layout `l` wants it. */
static inline void case_check(const struct case_layout *l, const char *root,
                              int64_t step)
{
    struct arena a = arena_make("check");
    struct state s;
    assert_ok(state_open(&a, root, step, &s));
    assert_int_equal(s.manifest.step, step);
    assert_int_equal(s.manifest.tensors, CASE_TENSORS);
    assert_string_equal(s.manifest.meta,
                        arena_text(&a, "{\"rows\":%" PRId64 ",\"real\":"
                                   "0.10000000000000001}", 7 * step));
    assert_ok(state_verify(&s, 0, 1));
    for (int r = 0; r < case_ranks(l); r++)
        for (int i = 0; i < CASE_TENSORS; i++) {
            struct state_piece want = case_piece(l, r, i);
            void *is = arena_push(&a, (size_t)state_piece_bytes(&want) + 8);
            void *was = arena_push(&a, (size_t)state_piece_bytes(&want) + 8);
            assert_ok(state_read(&s, &want, is));
            for (int64_t k = want.part.from; k < want.part.to; k++)
                case_put(want.dtype, was, k - want.part.from,
                         case_value(step, i, box_global(&want.box, k)));
            assert_memory_equal(is, was, (size_t)state_piece_bytes(&want) + 8);
        }
    arena_free(&a);
}

static bool case_newest_rank(struct rank *r, void *arg)
{
    struct case_run *run = arg;
    struct comm world = case_world(r);
    int64_t step;
    if (!state_newest(&world, run->root, &step))
        return false;
    if (r->rank == 0)
        run->step = step;
    return comm_barrier(&world) &&
           (step == run->step || fail("rank %d found another step", r->rank));
}

/* The newest whole step as `ranks` find it. */
static inline bool case_newest(int ranks, const char *root, int64_t *step)
{
    struct case_run run = {.root = root, .step = -2};
    bool ok = world_run(ranks, 0, case_newest_rank, &run);
    *step = run.step;
    return ok;
}

#endif
