/* step.c - one training step: load rows, run the plan, update, count.
 *
 * Stands alone because it is what every rank repeats; when to look, save and stop is
 * the loop's business (train.c). */
#include "train/trainer.h"

#include "base/log.h"
#include "base/stop.h"
#include "base/text.h"
#include "train/left_out.h"
#include "train/optimizer.h"

#include <inttypes.h>
#include <math.h>
#include <xxhash.h>

/* By steps, or by samples: those of the passes asked for that no longer wait. */
bool run_measure(const struct trainer *t, int64_t step, double *share)
{
    const struct recipe *r = t->s.recipe;
    const struct cursor *c = &t->state.cursor;
    int64_t all = r->train_steps, now = step;
    if (r->train_epochs) {
        all = r->train_epochs * mix_epoch_samples(t->s.mix);
        now = MIN(c->position, all);
        for (int i = 0; i < c->nwaiting; i++)
            now -= c->waiting[i] < all;
    }
    *share = all > 0 ? MIN((double)now / (double)all, 1) : 1;
    return now >= all;
}

/* After the last pass, for a step that is not full: nothing but room. */
static const struct row *empty_row(struct trainer *t)
{
    if (!t->batch->empty) {
        struct row *row = NEW(&t->s.arena, struct row, 1);
        row_fill(&t->s.arena, &t->s.loader.shape, NULL, 0, row);
        t->batch->empty = row;
    }
    return t->batch->empty;
}

static bool rows_load(struct trainer *t)
{
    struct batch *b = t->batch;
    double before = loader_wait_seconds(b->loader);
    b->sum = (struct ledger){0};
    for (int64_t i = 0; i < t->s.recipe->batch_rows; i++) {
        bool end = false;
        b->stop = stop_asked();
        if (b->stop)                    /* the cursor is still before these rows */
            return true;
        if (!loader_next(b->loader, &b->row[i], &end))
            return false;
        left_out_row(&t->s, b->loader);
        b->ended = end && i == 0;       /* what was left is of no use */
        if (b->ended)
            break;
        if (end)
            b->row[i] = empty_row(t);
        if (!ledger_check(&b->row[i]->ledger))
            BUG("%s", fail_message());
        ledger_add(&b->sum, &b->row[i]->ledger);
    }
    loader_cursor(b->loader, &t->state.cursor);
    b->last = run_measure(t, t->state.step + 1, &b->share);
    b->waited = loader_wait_seconds(b->loader) - before;
    return ledger_check(&b->sum) || fail_kind(FAULT_DATA);
}

/* Rows of the next step for all ranks, or the word to stop.  Nobody reads the rows of
 * the step before any more: all have met in its update. */
bool step_begin(struct trainer *t)
{
    if (session_leads(&t->s) && !rows_load(t))
        return false;
    return comm_barrier(machine_world(t->s.machine)) || fail_kind(FAULT_RANK);
}

/* Adds up over all ranks. */
static bool ranks_sum(const struct trainer *t, double *x, int64_t count)
{
    return comm_all_reduce(machine_world(t->s.machine), DTYPE_F64, x, count) ||
           fail_kind(FAULT_RANK);
}

/* Of all ranks: the work of a step and the most memory. */
bool step_costs(struct trainer *t)
{
    struct arena a = arena_make("work");
    const struct plan *p = t->s.plan;
    struct work *work = NEW(&a, struct work, p->nstep);
    plan_work(p, work);
    t->hardware_flops = 0;
    for (int64_t i = 0; i < p->nstep; i++)
        t->hardware_flops += work[i].flops;
    arena_free(&a);
    t->peak_bytes = machine_bytes(t->s.machine);
    return ranks_sum(t, &t->hardware_flops, 1) &&
           (comm_max(machine_world(t->s.machine), DTYPE_I64, &t->peak_bytes, 1) ||
            fail_kind(FAULT_RANK));
}

/* The data-parallel ranks' rows of microbatch mb. */
static const struct row *const *rows_of(const struct trainer *t, int mb)
{
    const struct mesh *m = t->s.model.graph.mesh;
    return &t->batch->row[mb * (m ? m->layout.dp : 1)];
}

/* Who encodes which image of the step; with more room where some find none. */
static bool images_share(struct trainer *t, struct arena *a, struct balance *b)
{
    struct session *s = &t->s;
    for (;;) {
        t->images = (struct balance_sum){0};
        for (int i = 0; i < s->plan->mbs; i++) {
            b[i] = balance_make(a, &s->model, rows_of(t, i));
            balance_add(&t->images, &b[i]);
        }
        if (t->images.crowded == 0 || s->model.encodes == s->model.capacity.patches)
            return true;
        if (!session_grow_images(s) || !step_costs(t))
            return false;
        if (session_leads(s))
            log_info("vision", "step %" PRId64 ": images found no room to be encoded; "
                     "runs with vision.capacity %g", t->state.step + 1, s->image_room);
    }
}

/* Data-parallel ranks take rows in turn; the tp, cp and pp ranks of one take the same.
 */
static bool rows_run(struct trainer *t)
{
    struct session *s = &t->s;
    struct arena a = arena_make("rows");
    struct balance *b = NEW(&a, struct balance, s->plan->mbs);
    const struct ledger *sum = &t->batch->sum;
    const struct mesh *m = s->model.graph.mesh;
    int at = m ? view_group_index(&m->dense, s->rank->rank, ON_DP) : 0;
    bool ok = images_share(t, &a, b);
    for (int i = 0; i < s->plan->mbs && ok; i++) {
        const struct row *const *rows = rows_of(t, i);
        feed_row(&t->feed[i], s->machine, &s->model, i, rows[at],
                 (double)sum->supervised, (double)ledger_useful(sum), s->router_bias,
                 NULL);
        if (s->model.balanced)
            balance_feed(&a, s->machine, &s->model, i, rows, &b[i]);
    }
    ok = ok && machine_step(s->machine);
    arena_free(&a);
    return ok;
}

/* The plan, on the rows of the step; again with more room where experts had too little:
 * no choice is ever dropped. */
static bool plan_run(struct trainer *t)
{
    struct session *s = &t->s;
    for (;;) {
        double lacks = 0;
        if (!rows_run(t))
            return false;
        for (int i = 0; i < s->plan->mbs && session_may_grow(s); i++) {
            struct tensor x = machine_value(s->machine, s->model.decoder.overflow, i);
            lacks += tensor_is(x) ? *(const float *)x.data : 0;
        }
        if (session_may_grow(s) && !ranks_sum(t, &lacks, 1))
            return false;
        if (lacks == 0)
            return true;
        if (!session_grow(s) || !step_costs(t))
            return false;
        log_info("moe",
                 "step %" PRId64 ": experts had no room for their rows; runs again "
                 "with moe.capacity %g",
                 t->state.step + 1, s->room);
    }
}

/* An output [1,1] summed over the microbatches this rank speaks for, each times the
 * row's share of live tokens where `shared` (figures of a row alone), else as it is. */
static double output_sum(const struct trainer *t, int value, bool shared)
{
    const struct graph *g = &t->s.model.graph;
    double sum = 0;
    if (value == NONE || (g->mesh && !mesh_speaks(g->mesh, g->rank)))
        return 0;
    for (int i = 0; i < t->s.plan->mbs; i++) {
        double x = *(const float *)machine_value(t->s.machine, value, i).data;
        sum += shared ? x * (double)t->feed[i].share : x;
    }
    return sum;
}

/* Choices of each expert in this step, summed over MoE layers 0..layer, as far as this
 * rank knows: its own tokens, the layers of its own stage. */
static void choices_add(const struct trainer *t, int layer, double *sum)
{
    const struct decoder_graph *d = &t->s.model.decoder;
    int experts = t->s.model.config.decoder.experts;
    for (int i = 0; i < t->s.plan->mbs; i++) {
        const float *now = machine_value(t->s.machine, d->chosen[layer], i).data;
        for (int e = 0; e < experts && now; e++)
            sum[e] += (double)now[e];
    }
}

/* Moves the router bias of a layer towards balance (Wang et al., "Auxiliary-loss-free
 * load balancing", 2024: a fixed step by sign); returns the largest load over the mean.
 */
static double layer_balance(const double *load, int experts, double rate, float *bias)
{
    double sum = 0, most = 0;
    for (int e = 0; e < experts; e++) {
        sum += load[e];
        most = MAX(most, load[e]);
    }
    for (int e = 0; e < experts && bias; e++) {
        double lack = sum / experts - load[e];
        bias[e] += (float)(rate * ((lack > 0) - (lack < 0)));
    }
    return sum > 0 ? most * experts / sum : 0;
}

/* All layers, by the choices of all ranks; *worst: the worst of them. */
static bool experts_balance(struct trainer *t, bool skipped, double *worst)
{
    struct session *s = &t->s;
    struct arena a = arena_make("load");
    int64_t experts = s->model.config.decoder.experts,
            layers = s->model.decoder.moe_layers;
    double *sum = NEW(&a, double, layers * experts + 1);
    double rate = skipped ? 0 : s->recipe->moe_bias_rate;
    for (int l = 0; l < layers; l++)
        choices_add(t, l, sum + l * experts);
    bool ok = ranks_sum(t, sum, layers * experts);
    *worst = 0;
    for (int64_t l = layers; l-- > 0 && ok;) {
        double *load = sum + l * experts;
        for (int64_t e = 0; e < experts && l > 0; e++)
            load[e] -= load[e - experts];
        float *bias = s->router_bias ? s->router_bias + l * experts : NULL;
        *worst = MAX(*worst, layer_balance(load, (int)experts, rate, bias));
    }
    arena_free(&a);
    return ok;
}

/* The last position of the mix that is not waiting to be trained on. */
static int64_t newest_position(const struct cursor *c)
{
    int64_t position = c->position - 1;
    for (int n = c->nwaiting; n > 0 && c->waiting[n - 1] == position; n--)
        position--;
    return MAX(position, 0);
}

static uint64_t order_hash(const struct trainer *t)
{
    XXH3_state_t *x = XXH3_createState();
    REQUIRE(x);
    XXH3_64bits_reset(x);
    for (int64_t i = 0; i < t->s.recipe->batch_rows; i++)
        for (int k = 0; k < t->batch->row[i]->nsample; k++)
            XXH3_64bits_update(x, &t->batch->row[i]->sample[k].id, sizeof(int64_t));
    uint64_t hash = XXH3_64bits_digest(x);
    XXH3_freeState(x);
    return hash;
}

/* A step whose gradients are not finite changes nothing but the counters. */
static bool step_skipped(struct trainer *t)
{
    struct arena a = arena_make("message");
    struct text names = text_make(&a);
    for (int64_t i = 0; i < t->s.recipe->batch_rows; i++)
        for (int k = 0; k < t->batch->row[i]->nsample; k++)
            text_add(&names, "%s%s", names.size ? ", " : "",
                     t->batch->row[i]->sample[k].name);
    t->state.skipped++;
    t->state.skipped_in_row++;
    if (session_leads(&t->s))
        log_warn("train",
                 "step %" PRId64 ": gradients are not finite, no update; samples: %s",
                 t->state.step, names.at);
    bool ok = t->state.skipped_in_row <= t->s.recipe->train_nonfinite_limit;
    if (!ok) {
        fail("train: gradients were not finite in %" PRId64
             " step(s) in a row, the limit is "
             "train.nonfinite_limit = %" PRId64 "; last samples: %.300s",
             t->state.skipped_in_row, t->s.recipe->train_nonfinite_limit, names.at);
        fail_kind(FAULT_NOT_FINITE);
    }
    arena_free(&a);
    return ok;
}

static double over(double most, double mean)
{
    return mean > 0 ? most / mean : 0;
}

bool step_run(struct trainer *t, struct metrics *m)
{
    const struct session *s = &t->s;
    const struct decoder_graph *d = &s->model.decoder;
    /* Now: once this step's sums have met, rank 0 may be at the next one's rows. */
    const struct ledger sum = t->batch->sum;
    t->last = t->batch->last;
    t->share = t->batch->share;
    if (!plan_run(t))
        return false;
    int64_t step = ++t->state.step;
    struct update u;
    if (!optimizer_step(s->recipe, &s->model, s->machine, s->ops, &t->s.stream,
                        schedule_rate(s->recipe, step, t->share), t->state.updates,
                        &u))
        return false;
    ledger_add(&t->state.ledger, &sum);
    if (u.skipped && !step_skipped(t))
        return false;
    if (!u.skipped) {
        t->state.updates++;
        t->state.skipped_in_row = 0;
    }
    double balance,
        loss[] = {output_sum(t, d->cross_entropy, false), output_sum(t, d->aux, true),
                  output_sum(t, d->z_loss, true)};
    if (!ranks_sum(t, loss, COUNT(loss)) || !experts_balance(t, u.skipped, &balance))
        return false;
    struct flops_count work = flops_count_of(&sum, &s->model);
    *m = (struct metrics){
        .step = step,
        .share = t->share,
        .last = t->last,
        .loss = loss[0],
        .aux_loss = loss[1],
        .z_loss = loss[2],
        .grad_norm = u.grad_norm,
        .lr = u.rate,
        .ledger = sum,
        .model_flops = model_flops(&s->model.config, &work, s->model.frozen),
        .hardware_flops = t->hardware_flops,
        .peak_bytes = t->peak_bytes,
        .skipped_steps = t->state.skipped,
        .bad_samples = t->state.cursor.bad,
        .expert_load_max_over_mean = balance,
        .vision_load_max_over_mean = over(t->images.most, t->images.mean),
        .vision_load_unbalanced = over(t->images.unbalanced, t->images.mean),
        .vision_crowded = t->images.crowded,
    };
    if (session_leads(s)) {             /* others may be behind, it owns the batch */
        m->data_wait_ms = 1e3 * t->batch->waited;
        m->epoch = 1 + mix_at(s->mix, newest_position(&t->state.cursor)).epoch;
        m->order_hash = order_hash(t);
    }
    return true;
}
