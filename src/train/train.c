/* train.c - the loop: load rows, run the plan, update, book, save, again. */
#include "train/train.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/page.h"
#include "train/train_state.h"
#include "train/weights.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <xxhash.h>

struct trainer {
    struct session s;
    struct train_state state;
    struct loader *loader;
    struct metrics_log *log;
    struct feed *feed;                  /* [batch.rows] */
    const struct row **row;             /* [batch.rows] of this step */
    struct view_of_model *eval, *answers;       /* NULL: never wanted */
    const char *run, *checkpoints;
    double hardware_flops;              /* of one step of the plan */
};

enum { LEFT_OUT_SHOWN = 16 };           /* of one row */

static volatile sig_atomic_t stopping;

static void stop_soon(int signal_number)
{
    (void)signal_number;
    stopping = 1;
}

/* ---- one step ---- */

/* Samples that policy left out on the way to the last row, each with its cause. */
static void left_out_log(const struct trainer *t)
{
    struct left_out gone[LEFT_OUT_SHOWN];
    int n = loader_left_out(t->loader, gone, COUNT(gone));
    for (int i = 0; i < n; i++)
        log_warn("data", "left out: %s: %s", gone[i].name, gone[i].why);
}

static bool rows_load(struct trainer *t, struct ledger *sum)
{
    *sum = (struct ledger){0};
    for (int i = 0; i < t->s.plan->mbs; i++) {
        bool end;
        if (!loader_next(t->loader, &t->row[i], &end))
            return false;
        REQUIRE(!end);                  /* training data goes on, epoch after epoch */
        left_out_log(t);
        if (!ledger_check(&t->row[i]->ledger))
            BUG("%s", fail_message());
        ledger_add(sum, &t->row[i]->ledger);
    }
    return ledger_check(sum) || fail_kind(FAULT_DATA);
}

static bool plan_run(struct trainer *t, const struct ledger *sum)
{
    struct session *s = &t->s;
    double live = (double)ledger_useful(sum);
    for (int i = 0; i < s->plan->mbs; i++)
        feed_row(&t->feed[i], s->machine, &s->model, i, t->row[i], (double)sum->supervised,
                 live, s->router_bias, NULL);
    return machine_step(s->machine);
}

/* An output [1,1] summed over microbatches, each times the row's share of live tokens
 * where `shared` (figures of a row alone), else as it is. */
static double output_sum(const struct trainer *t, int value, bool shared)
{
    double sum = 0;
    if (value == NONE)
        return 0;
    for (int i = 0; i < t->s.plan->mbs; i++) {
        double x = *(const float *)machine_value(t->s.machine, value, i).data;
        sum += shared ? x * (double)t->feed[i].share : x;
    }
    return sum;
}

/* Choices of each expert of MoE layer `layer` in this step: load[E]. */
static void expert_load(const struct trainer *t, int layer, double *load)
{
    const struct decoder_graph *d = &t->s.model.decoder;
    int experts = t->s.model.config.decoder.experts;
    memset(load, 0, sizeof *load * (size_t)experts);
    for (int i = 0; i < t->s.plan->mbs; i++) {
        const float *now = machine_value(t->s.machine, d->chosen[layer], i).data;
        const float *before = layer ? machine_value(t->s.machine, d->chosen[layer - 1],
                                                    i).data : NULL;
        for (int e = 0; e < experts; e++)
            load[e] += (double)now[e] - (before ? (double)before[e] : 0);
    }
}

/* Worst layer's largest load over its mean; moves the router bias towards balance
 * (Wang et al., "Auxiliary-loss-free load balancing", 2024: a fixed step by sign). */
static double experts_balance(struct trainer *t, bool skipped)
{
    struct session *s = &t->s;
    struct arena a = arena_make("load");
    int experts = s->model.config.decoder.experts;
    double worst = 0, *load = NEW(&a, double, experts + 1);
    double rate = skipped ? 0 : s->recipe->moe_bias_rate;
    for (int l = 0; l < s->model.decoder.moe_layers; l++) {
        double sum = 0, most = 0;
        expert_load(t, l, load);
        for (int e = 0; e < experts; e++) {
            sum += load[e];
            most = MAX(most, load[e]);
        }
        worst = MAX(worst, sum > 0 ? most * experts / sum : 0);
        for (int e = 0; e < experts && s->router_bias; e++) {
            double lack = sum / experts - load[e];
            s->router_bias[(int64_t)l * experts + e] +=
                (float)(rate * ((lack > 0) - (lack < 0)));
        }
    }
    arena_free(&a);
    return worst;
}

static uint64_t order_hash(const struct trainer *t)
{
    XXH3_state_t *x = XXH3_createState();
    REQUIRE(x);
    XXH3_64bits_reset(x);
    for (int i = 0; i < t->s.plan->mbs; i++)
        for (int k = 0; k < t->row[i]->nsample; k++)
            XXH3_64bits_update(x, &t->row[i]->sample[k].id, sizeof(int64_t));
    uint64_t hash = XXH3_64bits_digest(x);
    XXH3_freeState(x);
    return hash;
}

/* A step whose gradients are not finite changes nothing but the counters. */
static bool step_skipped(struct trainer *t)
{
    struct arena a = arena_make("message");
    struct text names = text_make(&a);
    for (int i = 0; i < t->s.plan->mbs; i++)
        for (int k = 0; k < t->row[i]->nsample; k++)
            text_add(&names, "%s%s", names.size ? ", " : "", t->row[i]->sample[k].name);
    t->state.skipped++;
    t->state.skipped_in_row++;
    log_warn("train", "step %" PRId64 ": gradients are not finite, no update; samples: %s",
             t->state.step, names.at);
    bool ok = t->state.skipped_in_row <= t->s.recipe->train_nonfinite_limit;
    if (!ok) {
        fail("train: gradients were not finite in %" PRId64 " steps in a row, the limit is "
             "train.nonfinite_limit = %" PRId64 "; last samples: %.300s",
             t->state.skipped_in_row, t->s.recipe->train_nonfinite_limit, names.at);
        fail_kind(FAULT_NOT_FINITE);
    }
    arena_free(&a);
    return ok;
}

static bool step_run(struct trainer *t, struct metrics *m)
{
    const struct session *s = &t->s;
    const struct decoder_graph *d = &s->model.decoder;
    double began = clock_seconds(), waited = loader_wait_seconds(t->loader);
    struct ledger sum;
    if (!rows_load(t, &sum))
        return false;
    waited = loader_wait_seconds(t->loader) - waited;
    if (!plan_run(t, &sum))
        return false;
    int64_t step = ++t->state.step;
    struct update u = optimizer_step(s->recipe, &s->model, s->machine, s->ops,
                                     &t->s.stream, step, t->state.updates);
    ledger_add(&t->state.ledger, &sum);
    loader_cursor(t->loader, &t->state.cursor);
    if (u.skipped ? !step_skipped(t) : false)
        return false;
    if (!u.skipped) {
        t->state.updates++;
        t->state.skipped_in_row = 0;
    }
    struct flops_count work = flops_count_of(&sum, &s->model);
    *m = (struct metrics){
        .step = step, .loss = output_sum(t, d->cross_entropy, false),
        .aux_loss = output_sum(t, d->aux, true), .z_loss = output_sum(t, d->z_loss, true),
        .grad_norm = u.grad_norm, .lr = u.rate, .data_wait_ms = 1e3 * waited,
        .ledger = sum, .model_flops = model_flops(&s->model.config, &work, s->model.frozen),
        .hardware_flops = t->hardware_flops, .peak_bytes = s->plan->bytes,
        .skipped_steps = t->state.skipped, .bad_samples = t->state.cursor.bad,
        .epoch = mix_at(s->mix, MAX(t->state.cursor.position - 1, 0)).epoch,
        .expert_load_max_over_mean = experts_balance(t, u.skipped), .eval_loss = NAN,
        .order_hash = order_hash(t),
    };
    m->step_ms = 1e3 * (clock_seconds() - began);
    return true;
}

/* ---- between steps ---- */

static bool due(int64_t every, int64_t step, int64_t last)
{
    return every > 0 && (step % every == 0 || step == last);
}

static bool evaluation_run(struct trainer *t, struct metrics *m)
{
    struct evaluation e;
    metrics_phase("evaluating");
    if (!machine_use(t->s.machine, t->eval->plan) ||
        !evaluate(&t->s, t->eval, t->s.recipe->eval_rows, &e))
        return false;
    m->eval_loss = e.loss;
    return machine_use(t->s.machine, t->s.plan);
}

static json_t *sample_json(const struct sample *sample, const struct answer *answer)
{
    struct arena a = arena_make("sample");
    const char *want = sample_answer(sample, &a);
    json_t *images = json_array();
    for (int i = 0; i < sample->nimage; i++)
        json_array_append_new(images, json_string(sample->image[i].name));
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:o}", "name", sample->name, "prompt",
                          sample_prompt(sample, &a), "data", want ? want : "", "model",
                          answer->text, "images", images);
    arena_free(&a);
    return j;
}

/* samples/step-N.jsonl, one object a sample, and TensorBoard text. */
static bool samples_write(struct trainer *t, const struct sample *sample,
                          const struct answer *answer, int count)
{
    struct arena a = arena_make("samples");
    struct text lines = text_make(&a), text = text_make(&a);
    for (int i = 0; i < count; i++) {
        json_t *j = sample_json(&sample[i], &answer[i]);
        char *line = json_dumps(j, JSON_COMPACT);
        text_add(&lines, "%s\n", line);
        text_add(&text, "%s: %s\n\n", sample[i].name, answer[i].text);
        free(line);
        json_decref(j);
    }
    char *folder = path_join(&a, t->run, "samples");
    char *path = arena_text(&a, "%s/step-%" PRId64 ".jsonl", folder, t->state.step);
    bool ok = folder_make(folder) && file_replace(path, lines.at, lines.size) &&
              metrics_text(t->log, t->state.step, "samples", text.at);
    arena_free(&a);
    return ok;
}

/* Greedy answers for the first samples of the held-out split, else of the data. */
static bool answers_run(struct trainer *t)
{
    struct session *s = &t->s;
    struct arena a = arena_make("samples");
    int count = (int)s->recipe->sample_count, n = 0;
    struct sample *sample = NEW(&a, struct sample, count);
    struct answer *answer = NEW(&a, struct answer, count);
    const struct mix *mix = s->held ? s->held : s->mix;
    metrics_phase("generating samples");
    for (int64_t p = 0; n < count && p < 2 * (int64_t)count; p++) {
        struct mix_place at = mix_at(mix, p);
        if (source_read(mix_part(mix, at.part)->source, at.index, &a, &sample[n]))
            n++;
    }
    bool ok = machine_use(s->machine, t->answers->plan) &&
              generate(s, t->answers, &a, sample, n, (int)s->recipe->sample_tokens, answer) &&
              samples_write(t, sample, answer, n) && machine_use(s->machine, s->plan);
    arena_free(&a);
    return ok;
}

static bool state_write(struct trainer *t)
{
    metrics_phase("saving the training state");
    return train_state_save(&t->s, &t->state, t->checkpoints,
                            (int)t->s.recipe->checkpoint_keep);
}

static bool trace_write(struct trainer *t)
{
    struct arena a = arena_make("trace");
    struct text text = text_make(&a);
    trace_json(t->s.plan, machine_spans(t->s.machine), &text);
    bool ok = file_replace(path_join(&a, t->run, "trace.json"), text.at, text.size);
    arena_free(&a);
    machine_trace(t->s.machine, false);
    return ok;
}

static bool loop(struct trainer *t)
{
    const struct recipe *r = t->s.recipe;
    int64_t last = r->train_steps, saved = t->state.step;
    while (t->state.step < last && !stopping) {
        struct metrics m;
        bool traced = r->report_trace_step == t->state.step + 1;
        machine_trace(t->s.machine, traced);
        if (!step_run(t, &m) || (traced && !trace_write(t)))
            return false;
        if ((due(r->eval_every, m.step, last) && !evaluation_run(t, &m)) ||
            (due(r->sample_every, m.step, last) && !answers_run(t)) ||
            !metrics_add(t->log, &m))
            return false;
        if (r->checkpoint_every && m.step % r->checkpoint_every == 0) {
            if (!state_write(t))
                return false;
            saved = m.step;
        }
    }
    if (stopping)
        log_info("train", "stopped by a signal after step %" PRId64 "; run it again to go on",
                 t->state.step);
    return saved == t->state.step || state_write(t);
}

/* ---- before and after ---- */

static bool run_folder_make(struct trainer *t, struct arena *a)
{
    const struct recipe *r = t->s.recipe;
    struct text plan = text_make(a);
    char *yaml = recipe_text_of(r, a);
    t->run = path_join(a, r->run_folder, r->run_name);
    t->checkpoints = path_join(a, t->run, "checkpoints");
    plan_summary(t->s.plan, &plan);
    text_add(&plan, "\n");
    plan_explain(t->s.plan, &plan, -1);
    return folder_make(t->run) &&
           file_replace(path_join(a, t->run, "recipe.yaml"), yaml, (int64_t)strlen(yaml)) &&
           file_replace(path_join(a, t->run, "plan.txt"), plan.at, plan.size);
}

static void table_log(struct trainer *t, struct arena *a)
{
    struct text table = text_make(a);
    char **line;
    model_table(&t->s.model, &table);
    int n = text_split(a, table.at, "\n", &line);
    for (int i = 0; i < n; i++)
        log_info("model", "%s", line[i]);
}

static void hardware_flops_count(struct trainer *t, struct arena *a)
{
    struct arena_mark mark = arena_mark(a);
    struct work *work = NEW(a, struct work, t->s.plan->nstep);
    plan_work(t->s.plan, work);
    for (int64_t i = 0; i < t->s.plan->nstep; i++)
        t->hardware_flops += work[i].flops;
    arena_reset(a, mark);
}

static bool prepare(struct trainer *t, const struct recipe *r)
{
    struct session *s = &t->s;
    struct arena *a = &s->arena;
    bool resumed;
    if (!session_open(s, r, true) || !session_data(s) || !run_folder_make(t, a))
        return false;
    table_log(t, a);
    if (!session_machine(s) ||
        !train_state_load(s, t->checkpoints, &t->state, &resumed))
        return false;
    if (resumed)
        log_info("train", "resumed from %s/step-%" PRId64, t->checkpoints, t->state.step);
    t->feed = NEW(a, struct feed, s->plan->mbs);
    t->row = NEW(a, const struct row *, s->plan->mbs);
    for (int i = 0; i < s->plan->mbs; i++)
        t->feed[i] = feed_make(a, &s->model);
    hardware_flops_count(t, a);
    struct model_purpose loss = purpose_train(r, &s->model.config, s->model.frozen);
    struct model_purpose best = purpose_generate(r);
    if (r->eval_every)
        t->eval = session_view(s, &loss, &s->model.capacity);
    if (r->sample_every)
        t->answers = session_view(s, &best, &s->model.capacity);
    return loader_open(a, &s->loader, resumed ? &t->state.cursor : NULL, &t->loader) &&
           metrics_open(a, t->run, r, t->state.step, 1, &t->log);
}

static bool export(struct trainer *t)
{
    const struct recipe *r = t->s.recipe;
    if (!r->checkpoint_export || t->state.step < r->train_steps)
        return true;
    metrics_phase("exporting the model");
    char *folder = path_join(&t->s.arena, t->run, "model");
    if (!weights_export(&t->s.model, t->s.machine, folder, r->model_path,
                        strcmp(r->checkpoint_dtype, "bf16") ? DTYPE_F32 : DTYPE_BF16))
        return false;
    if (t->s.router_bias)
        log_warn("model", "%s: the format has no place for the router bias that balanced "
                 "training (moe.bias_rate); routing there differs", folder);
    log_info("model", "exported to %s", folder);
    return true;
}

static void signals_set(void (*handler)(int))
{
    struct sigaction act = {.sa_handler = handler};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}

bool train(const struct recipe *recipe)
{
    struct trainer t = {0};
    stopping = 0;
    signals_set(stop_soon);
    bool ok = prepare(&t, recipe) && loop(&t) && machine_evidence(t.s.machine) && export(&t);
    if (t.log)
        metrics_close(t.log);
    ok = ok && page_write(t.run);
    signals_set(SIG_DFL);
    if (t.loader)
        loader_close(t.loader);
    session_close(&t.s);
    return ok;
}
