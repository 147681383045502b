/* train.c - the loop: step, save, look, again; what comes before and after. */
#include "train/train.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/stop.h"
#include "base/text.h"
#include "checkpoint/hf.h"
#include "checkpoint/state.h"
#include "train/choices.h"
#include "train/crew.h"
#include "train/data.h"
#include "train/disk.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/layout.h"
#include "train/optimizer.h"
#include "train/trainer.h"
#include "train/weights.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <xxhash.h>

enum { PICTURE_MOST = 1 << 20 };        /* bytes of an image that is kept */

/* ---- between steps ---- */

static bool due(int64_t every, int64_t step, bool last)
{
    return every > 0 && (step % every == 0 || last);
}

static bool evaluation_run(struct trainer *t)
{
    struct session *s = &t->s;
    struct evaluation e = {.loss = NAN};
    if (session_leads(s)) {
        metrics_phase("evaluating");
        if (!evaluate(s, t->eval, s->recipe->eval_rows, &e) || !session_end(s) ||
            (!e.stopped && !metrics_evaluated(t->log, e.loss)))
            return false;
        if (e.stopped)
            log_info("train", "the evaluation of step %" PRId64 " was stopped; it is "
                     "made when the run goes on", t->state.step);
    } else if (!session_follow(s, &t->eval)) {
        return false;
    }
    return machine_use(s->machine, s->plan);
}

/* An image that is no file of its own (a shard's member, one within JSON) becomes one
 * beside the samples, once: the report shows it.  Its path from the run's folder, or
 * NULL. */
static bool picture_keep(const struct trainer *t, struct arena *a,
                         const struct image_source *image, const char **out)
{
    *out = NULL;
    if (image->path || image->data.size > PICTURE_MOST)
        return true;
    uint64_t hash = XXH3_64bits(image->data.at, (size_t)image->data.size);
    *out = arena_text(a, "samples/images/%016" PRIx64, hash);
    const char *path = path_join(a, t->run, *out);
    return file_exists(path) ||
           (folder_make(path_join(a, t->run, "samples/images")) &&
            file_replace(path, image->data.at, image->data.size));
}

static bool sample_json(const struct trainer *t, const struct sample *sample,
                        const struct answer *answer, json_t **out)
{
    struct arena a = arena_make("sample");
    const char *want = sample_answer(sample, &a), *kept;
    json_t *images = json_array(), *pictures = json_array();
    bool ok = true;
    for (int i = 0; i < sample->nimage && ok; i++) {
        ok = picture_keep(t, &a, &sample->image[i], &kept);
        json_array_append_new(images, json_string(sample->image[i].name));
        json_array_append_new(pictures, kept ? json_string(kept) : json_null());
    }
    *out = json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "name", sample->name, "prompt",
                     sample_prompt(sample, &a), "data", want ? want : "", "model",
                     answer->text, "images", images, "pictures", pictures);
    arena_free(&a);
    return ok;
}

static char *samples_path(const struct trainer *t, struct arena *a)
{
    return arena_text(a, "%s/samples/step-%" PRId64 ".jsonl", t->run, t->state.step);
}

/* One object a sample, and TensorBoard text. */
static bool samples_write(struct trainer *t, const struct sample *sample,
                          const struct answer *answer, int count)
{
    struct arena a = arena_make("samples");
    struct text lines = text_make(&a), text = text_make(&a);
    bool ok = folder_make(path_join(&a, t->run, "samples"));
    for (int i = 0; i < count && ok; i++) {
        json_t *j;
        ok = sample_json(t, &sample[i], &answer[i], &j);
        char *line = json_dumps(j, JSON_COMPACT);
        text_add(&lines, "%s\n", line);
        text_add(&text, "%s: %s\n\n", sample[i].name, answer[i].text);
        free(line);
        json_decref(j);
    }
    ok = ok && file_replace(samples_path(t, &a), lines.at, lines.size) &&
         metrics_text(t->log, t->state.step, "samples", text.at);
    arena_free(&a);
    return ok;
}

/* Greedy answers for the first samples of the held-out split, else of the data. */
static bool answers_make(struct trainer *t)
{
    struct session *s = &t->s;
    struct arena a = arena_make("samples");
    int count = (int)s->recipe->sample_count, n;
    struct sample *sample = NEW(&a, struct sample, count);
    struct answer *answer = NEW(&a, struct answer, count);
    metrics_phase("generating samples");
    bool ok = samples_pick(s, s->held ? s->held : s->mix, count, &a, sample, &n) &&
              generate(s, &a, &s->model.capacity, sample, n,
                       (int)s->recipe->sample_tokens, answer) &&
              samples_write(t, sample, answer, n);
    arena_free(&a);
    return ok;
}

static bool answers_run(struct trainer *t)
{
    return session_leads(&t->s) ? answers_make(t) : generate_follow(&t->s);
}

/* `last`: no step follows. */
static bool state_write(struct trainer *t, bool last)
{
    if (session_leads(&t->s)) {
        metrics_phase("saving the training state");
        if (!metrics_sync(t->log))
            return false;
    }
    return saver_save(t->saver, &t->state, last);
}

static char *state_path(const struct trainer *t, struct arena *a)
{
    return arena_text(a, "%s/step-%" PRId64, t->checkpoints, t->state.step);
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

/* Evaluation and samples.  What they say can be had again: whatever can be saved before
 * them is. */
static bool look(struct trainer *t, bool evaluates, bool samples, bool saved)
{
    if ((!evaluates || evaluation_run(t)) && (!samples || answers_run(t)))
        return true;
    struct failure why;
    fail_take(&why);
    if (!saved && !t->s.crew &&         /* other ranks may not be able to */
        !(machine_use(t->s.machine, t->s.plan) && state_write(t, true)))
        log_warn("checkpoint", "%s", fail_message());
    return fail_raise(&why);
}

/* What a stop kept from being done after the step resumed from, or could not be known
 * to be due after what turned out to be the last. */
static bool look_again(struct trainer *t)
{
    const struct recipe *r = t->s.recipe;
    struct batch *b = t->batch;
    int64_t step = t->state.step;
    bool last = b->ended;               /* of rank 0; the others read it below */
    if (session_leads(&t->s) && step > 0) {
        struct arena a = arena_make("path");
        b->evaluate = due(r->eval_every, step, last) &&
                      metrics_unevaluated(t->log, step);
        b->sample = due(r->sample_every, step, last) &&
                    !file_exists(samples_path(t, &a));
        b->exported = t->done && !file_older(path_join(&a, t->run, "model"),
                                             state_path(t, &a));
        arena_free(&a);
    }
    if (!comm_barrier(machine_world(t->s.machine)))
        return fail_kind(FAULT_RANK);
    t->last = b->ended;
    return look(t, b->evaluate, b->sample, true);
}

static bool loop(struct trainer *t)
{
    const struct recipe *r = t->s.recipe;
    int64_t saved = t->state.step;
    bool leads = session_leads(&t->s);
    if (!look_again(t))
        return false;
    if (leads && !t->last)
        metrics_phase("reading the first rows");
    while (!t->last) {
        struct metrics m;
        double began = clock_seconds();
        bool traced = leads && r->report_trace_step == t->state.step + 1;
        if (!step_begin(t))
            return false;
        if (t->batch->stop)
            break;
        if (t->batch->ended) {
            if (!look_again(t))
                return false;
            break;
        }
        stop_gently();                  /* now there is something to lose */
        machine_trace(t->s.machine, traced);
        if (!step_run(t, &m) || (traced && !trace_write(t)) || !saver_check(t->saver))
            return false;
        m.step_ms = 1e3 * (clock_seconds() - began);
        m.changes = t->state.changes;   /* with the first step they hold for */
        t->state.changes = NULL;
        if (leads && !metrics_add(t->log, &m))
            return false;
        if (t->last || due(r->checkpoint_every, m.step, t->last)) {
            if (!state_write(t, t->last))
                return false;
            saved = m.step;
        }
        if (!look(t, due(r->eval_every, m.step, t->last),
                  due(r->sample_every, m.step, t->last), saved == m.step))
            return false;
    }
    bool ok = saved == t->state.step ? saver_wait(t->saver) : state_write(t, true);
    if (ok && !t->last)
        log_info("train",
                 "stopped by a signal after step %" PRId64 "; run it again to go on",
                 t->state.step);
    return ok;
}

/* ---- before and after ---- */

/* What an earlier process left unfinished when it was killed. */
static void leftovers_remove(const struct trainer *t, struct arena *a)
{
    char *part = path_join(a, t->run, "model" HF_PART);
    if (!folder_sweep(t->run) || !folder_sweep(path_join(a, t->run, "samples")) ||
        !state_sweep(t->checkpoints) || !folder_remove(part) ||
        !folder_remove(arena_text(a, "%s.aside", part)))
        log_warn("train", "%s", fail_message());
}

/* The run is this process's until it ends. */
static bool run_claim(struct trainer *t, struct arena *a)
{
    if (!folder_make(t->run))
        return false;
    t->locked = file_lock(path_join(a, t->run, "lock"), &t->lock);
    if (t->locked)
        leftovers_remove(t, a);
    return t->locked || fail_in(fail_fault() == FAULT_REFUSED
                                    ? "train: somebody trains the run %s"
                                    : "train: run %s", t->run);
}

/* What is written says what is trained: it is read again first. */
static void recipe_again(struct arena *a, const char *yaml)
{
    struct recipe *again = NEW(a, struct recipe, 1);
    recipe_default(a, again);
    if (!recipe_parse(again, "recipe.yaml", yaml, (int64_t)strlen(yaml)))
        BUG("%s", fail_message());
    if (strcmp(recipe_text_of(again, a), yaml))
        BUG("recipe.yaml would be read as another recipe");
}

static bool run_write(struct trainer *t, struct arena *a)
{
    const struct recipe *r = t->s.recipe;
    struct text plan = text_make(a);
    char *yaml = recipe_text_of(r, a);
    recipe_again(a, yaml);
    plan_summary(t->s.plan, &plan);
    text_add(&plan, "\n");
    plan_explain(t->s.plan, &plan, -1);
    return file_replace(path_join(a, t->run, "recipe.yaml"), yaml,
                        (int64_t)strlen(yaml)) &&
           file_replace(path_join(a, t->run, "plan.txt"), plan.at, plan.size);
}

/* A run may go on with other values; that it does is said. */
static void changes_log(const struct trainer *t, struct arena *a)
{
    char **line;
    int n = t->state.changes ? text_split(a, t->state.changes, "\n", &line) : 0;
    for (int i = 0; i < n; i++)
        log_warn("recipe", "changed since step %" PRId64 ": %s", t->state.step,
                 line[i]);
}

/* Room for all that will be written? */
static bool room_check(const struct trainer *t, struct arena *a)
{
    char **name;
    int64_t count = 0, kept = 0;
    if (folder_exists(t->checkpoints) && !folder_list(a, t->checkpoints, &name, &count))
        return fail_kind(FAULT_CHECKPOINT);
    for (int64_t i = 0; i < count; i++)
        kept += text_starts(name[i], "step-");
    const struct disk_need need = disk_need_of(&t->s, t->state.step, kept);
    return disk_check(t->run, &need);
}

/* A run that is done stays as it is. */
static bool run_begin(struct trainer *t, struct arena *a, bool resumed)
{
    const struct recipe *r = t->s.recipe;
    double share;
    t->batch->ended = run_measure(t, t->state.step, &share);
    t->done = resumed && t->batch->ended;
    if (t->done && r->train_epochs)
        log_info("train", "%s is already done, %" PRId64 " step(s), %" PRId64 " "
                 "epoch(s); raise train.epochs to go on", t->run, t->state.step,
                 r->train_epochs);
    else if (t->done)
        log_info("train", "%s is already done, %" PRId64 " of %" PRId64 " step(s); "
                 "raise train.steps to go on", t->run, t->state.step, r->train_steps);
    if (t->done)
        return true;
    schedule_warn(r);
    if (resumed) {
        log_info("train", "resumed from %s", state_path(t, a));
        changes_log(t, a);
    }
    return room_check(t, a) && run_write(t, a);
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

static bool files_open(struct trainer *t, bool resumed)
{
    struct session *s = &t->s;
    int ranks = s->rank ? s->rank->ranks : 1;
    struct loader_options o = s->loader;
    o.positions = s->recipe->train_epochs * mix_epoch_samples(s->mix);
    return loader_open(&s->arena, &o, resumed ? &t->state.cursor : NULL,
                       &t->batch->loader) &&
           metrics_open(&s->arena, t->run, s->recipe, t->state.step, ranks, &t->log);
}

static bool prepare(struct trainer *t, const struct recipe *r, const struct rank *rank)
{
    struct session *s = &t->s;
    struct arena *a = &s->arena;
    bool resumed;
    if (!session_join(s, r, true, rank, rank ? &t->batch->crew : NULL))
        return false;
    t->run = path_join(a, r->run_folder, r->run_name);
    t->checkpoints = path_join(a, t->run, "checkpoints");
    if (session_leads(s)) {
        if (!session_data(s) || !run_claim(t, a))
            return false;
        table_log(t, a);
    }
    if (!session_machine(s) ||
        !train_state_load(s, t->checkpoints, t->allowed, &t->state, &resumed) ||
        !saver_make(s, t->checkpoints, &t->saver) ||
        (session_leads(s) && !run_begin(t, a, resumed)))
        return false;
    t->feed = NEW(a, struct feed, s->plan->mbs);
    for (int i = 0; i < s->plan->mbs; i++)
        t->feed[i] = feed_make(a, &s->model);
    if (!step_costs(t))
        return false;
    struct model_purpose loss = purpose_train(r, &s->model.config, s->model.frozen);
    if (r->eval_every)
        t->eval = session_view(s, a, &loss, &s->model.capacity);
    return !session_leads(s) || files_open(t, resumed);
}

static bool export(struct trainer *t)
{
    const struct recipe *r = t->s.recipe;
    if (!r->checkpoint_export || !t->last || t->batch->exported)
        return true;
    if (session_leads(&t->s))
        metrics_phase("exporting the model");
    char *folder = path_join(&t->s.arena, t->run, "model");
    if (!weights_export(&t->s.model, t->s.machine, folder, r->model_path,
                        dtype_of_export(r->checkpoint_dtype),
                        experts_of(r->checkpoint_experts)))
        return false;
    if (t->s.router_bias && session_leads(&t->s))
        log_warn("model",
                 "%s: the format has no place for the router bias that balanced "
                 "training (moe.bias_rate); routing there differs",
                 folder);
    log_info("model", "exported to %s", folder);
    return true;
}

struct job {
    const struct recipe *recipe;
    struct trainer *trainer;            /* [ranks] */
};

/* Whatever went wrong, a state that is being written gets finished, unless a rank is
 * lost. */
static bool rank_end(struct trainer *t, bool ok)
{
    struct failure why;
    if (!ok)
        fail_take(&why);
    bool saved = !t->saver || saver_end(t->saver);
    /* All ranks fail a save alike; and where one is lost it is the same story. */
    if (!ok && !saved && session_leads(&t->s) && fail_fault() != FAULT_RANK)
        log_warn("checkpoint", "%s", fail_message());
    if (t->log)
        metrics_close(t->log);
    return ok ? saved : fail_raise(&why);
}

static bool rank_train(struct job *j, int index, const struct rank *rank)
{
    struct trainer *t = &j->trainer[index];
    return rank_end(t, prepare(t, j->recipe, rank) && loop(t) &&
                           machine_evidence(t->s.machine) && export(t));
}

static bool rank_main(struct rank *rank, void *arg)
{
    return rank_train(arg, rank->rank, rank);
}

bool train(const struct recipe *recipe, const struct allowed *allowed)
{
    struct arena a = arena_make("train");
    struct batch *batch = NEW(&a, struct batch, 1);
    struct recipe resolved = *recipe;   /* what the run's recipe.yaml says */
    int ranks = session_ranks(recipe);
    if (!session_look(recipe, recipe->checkpoint_export) ||
        !session_layout(recipe, &batch->crew.mesh)) {
        arena_free(&a);
        return false;
    }
    resolved.parallel_ranks = ranks;
    struct job job = {&resolved, NEW(&a, struct trainer, ranks)};
    batch->row = NEW(&a, const struct row *, recipe->batch_rows);
    for (int i = 0; i < ranks; i++)
        job.trainer[i] = (struct trainer){.batch = batch, .allowed = allowed};
    signal(SIGPIPE, SIG_IGN);           /* words that nobody reads end no run */
    bool ok =
        ranks == 1 ? rank_train(&job, 0, NULL) : world_run(ranks, 0, rank_main, &job);
    if (job.trainer[0].locked)
        file_unlock(job.trainer[0].lock);
    if (batch->loader)                  /* before the sources it reads */
        loader_close(batch->loader);
    for (int i = 0; i < ranks; i++)
        session_close(&job.trainer[i].s);
    arena_free(&a);
    return ok;
}
