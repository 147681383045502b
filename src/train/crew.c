/* crew.c - rows that all ranks of a session run together: their loss, their
 * best words, and whether these are numbers. */
#include "train/crew.h"

#include <inttypes.h>
#include <math.h>
#include <time.h>

int session_ways(const struct session *s)
{
    return s->crew ? s->crew->mesh.layout.dp : 1;
}

/* Of all ranks the first weight that holds something else than numbers, or none. */
static int weight_not_finite(const struct session *s)
{
    const int none = s->model.graph.nparam;
    int64_t first = 0;
    while (first < none && machine_finite(s->machine, HELD_MASTER, (int)first))
        first++;
    first = none - first;               /* the first is the most of these */
    return comm_max(machine_world(s->machine), DTYPE_I64, &first, 1)
               ? none - (int)first : none;
}

bool session_finite(const struct session *s, const char *what, double x)
{
    if (isfinite(x))
        return true;
    int weight = weight_not_finite(s);
    x = isnan(x) ? NAN : x;             /* of no sign that one would read */
    const char *model = s->recipe->model_path;
    if (weight < s->model.graph.nparam)
        fail("model %s: %s is %g: the weight '%s' has NaN or infinite values; take a "
             "model or a training state from before it had", model, what, x,
             s->model.graph.param[weight].name);
    else
        fail("model %s: %s is %g, though each weight is a number; device.check=true "
             "names the first step that is not finite", model, what, x);
    return fail_kind(FAULT_NOT_FINITE);
}

/* A number that is larger for a larger logit, and of equal ones for the lower id. */
static int64_t key_of(float logit, int32_t id)
{
    uint32_t bits;
    logit = isnan(logit) ? (float)NAN : logit + 0.0f;   /* -0 is 0, -NaN NaN */
    memcpy(&bits, &logit, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 1u << 31;
    return (int64_t)((uint64_t)bits << 31 | (uint32_t)(INT32_MAX - id));
}

static float logit_of(int64_t key)
{
    uint32_t bits = (uint32_t)((uint64_t)key >> 31);
    float logit;
    bits = bits >> 31 ? bits & INT32_MAX : ~bits;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

/* The best words of the rows, of those that the ranks found at their places among
 * their words: a rank of the last stage has some, others have none.  `at`: the row of
 * this rank. */
static bool best_meet(struct session *s, struct view_of_model *v, int at, int rows)
{
    const struct decoder_graph *d = &v->model.decoder;
    int64_t T = v->model.capacity.tokens, all = T * rows, k = 0;
    struct places p = places_of_row(&v->model.graph, T);
    struct tensor id = machine_value(s->machine, d->best, 0);
    struct tensor logit = machine_value(s->machine, d->best_logit, 0);
    for (int64_t t = 0; t < all; t++)
        v->key[t] = -1;
    for (int i = 0; i < 2 && tensor_is(id) && at < rows; i++)
        for (int64_t t = p.from[i]; t < p.from[i] + p.count[i]; t++, k++) {
            int32_t word = ((const int32_t *)id.data)[k];
            if (word >= 0)
                v->key[at * T + t] = key_of(((const float *)logit.data)[k],
                                            word + d->best_first);
        }
    if (!comm_max(machine_world(s->machine), DTYPE_I64, v->key, all))
        return fail_kind(FAULT_RANK);
    for (int64_t t = 0; t < all; t++) {
        v->best[t] = v->key[t] < 0 ? -1 : INT32_MAX - (int32_t)(v->key[t] & INT32_MAX);
        if (v->key[t] >= 0 &&
            !session_finite(s, "the largest logit of a token", logit_of(v->key[t])))
            return false;               /* on all ranks */
    }
    return true;
}

/* Data-parallel ranks take a row each; those without one run the last again, for the
 * others to meet, and do not count it. */
static bool rows_run(struct session *s, struct view_of_model *v,
                     const struct row *const *row, int rows, const struct ask *ask,
                     double *loss)
{
    const struct mesh *m = s->crew ? &s->crew->mesh : NULL;
    int value = v->model.decoder.cross_entropy;
    int at = m ? view_group_index(&m->dense, s->rank->rank, ON_DP) : 0;
    int mine = MIN(at, rows - 1);
    double sum = 0;
    if (machine_plan(s->machine) != v->plan && !machine_use(s->machine, v->plan))
        return false;
    feed_row(&v->feed, s->machine, &v->model, 0, row[mine], 1, (double)row[mine]->live,
             s->router_bias, ask ? &ask[mine] : NULL);
    if (!machine_step(s->machine))
        return false;
    if (value != NONE && at < rows && (!m || mesh_speaks(m, s->rank->rank)))
        sum = *(const float *)machine_value(s->machine, value, 0).data;
    if (v->best && !best_meet(s, v, at, rows))
        return false;
    /* Now nobody reads the rows any more. */
    if (!comm_all_reduce(machine_world(s->machine), DTYPE_F64, &sum, 1))
        return fail_kind(FAULT_RANK);
    if (loss)
        *loss = sum;
    return session_finite(s, "the loss", sum);
}

static bool meet(const struct session *s)
{
    return comm_barrier(machine_world(s->machine)) || fail_kind(FAULT_RANK);
}

bool session_rows(struct session *s, struct view_of_model *v,
                  const struct row *const *row, int rows, const struct ask *ask,
                  double *loss)
{
    REQUIRE(rows >= 1 && rows <= session_ways(s));
    if (s->crew) {
        s->crew->row = row;
        s->crew->rows = rows;
        s->crew->view = v->number;
        s->crew->ask = ask;
        s->crew->end = false;
    }
    bool ok = meet(s) && rows_run(s, v, row, rows, ask, loss);
    /* Others may wait for this rank, or still be at the rows, which the caller owns. */
    if (!ok && s->rank)
        world_leave(s->rank);
    const struct timespec nap = {.tv_nsec = 1000000};
    while (!ok && s->crew && atomic_load(&s->crew->inside) > 0)
        nanosleep(&nap, NULL);
    return ok;
}

bool session_end(struct session *s)
{
    if (s->crew)
        s->crew->end = true;
    return meet(s) && meet(s);          /* all have seen it before it changes again */
}

bool session_follow(struct session *s, struct view_of_model *const *view)
{
    for (bool more = true; more;) {
        atomic_fetch_add(&s->crew->inside, 1);
        bool ok = meet(s);
        more = ok && !s->crew->end;
        ok = ok && (more ? rows_run(s, view[s->crew->view], s->crew->row,
                                    s->crew->rows, s->crew->ask, NULL)
                         : meet(s));
        atomic_fetch_sub(&s->crew->inside, 1);
        if (!ok)
            return false;
    }
    return true;
}

bool session_agree(struct session *s, struct answers_room *room)
{
    if (s->crew && session_leads(s))
        s->crew->room = *room;
    if (!meet(s))
        return false;
    if (s->crew)
        *room = s->crew->room;
    return true;
}
