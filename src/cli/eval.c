/* eval.c - vlmoe eval: held-out loss of a model, and some of its answers. */
#include "cli/cli.h"

#include "train/crew.h"
#include "train/data.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/layout.h"

#include <inttypes.h>

struct job {
    const struct recipe *recipe;
    struct crew crew;
    int64_t samples;
    bool training, swap;
};

/* Of every rank, for the loss; rank 0 says of what, the others follow. */
static struct view_of_model *loss_view(struct session *s)
{
    struct model_purpose p = purpose_train(s->recipe, &s->model.config,
                                           s->model.frozen);
    return session_view(s, &s->arena, &p, &s->model.capacity);
}

static bool loss_print(struct session *s, struct view_of_model *v)
{
    struct evaluation e;
    if (!evaluate(s, v, s->recipe->eval_rows, &e))
        return false;
    if (e.ledger.supervised == 0) {
        fail("eval: no held-out sample can be used, of %" PRId64,
             mix_epoch_samples(s->held));
        return fail_kind(FAULT_DATA);
    }
    say("loss %.6f  supervised tokens %" PRId64 "  samples %" PRId64
           "  images %" PRId64 "  rows %" PRId64 "\n",
           e.loss, e.ledger.supervised, e.ledger.samples, e.ledger.images, e.rows);
    if (e.ledger.dropped)
        say("left out: %" PRId64 " sample(s) that cannot be read, %" PRId64
               " too long, %" PRId64 " without loss\n", e.ledger.bad,
               e.ledger.too_long, e.ledger.no_loss);
    return true;
}

/* How many of the answers equal the data's exactly. */
static bool answers_print(struct session *s, const struct sample *sample, int n)
{
    struct arena *a = &s->arena;
    struct answer *answer = NEW(a, struct answer, n + 1);
    int equal = 0;
    if (!generate(s, a, &s->model.capacity, sample, n, (int)s->recipe->sample_tokens,
                  answer))
        return false;
    for (int i = 0; i < n; i++) {
        const char *want = sample_answer(&sample[i], a);
        bool same = want && !strcmp(want, answer[i].text);
        equal += same;
        say("%s %s\n    data:  %s\n    model: %s\n", same ? "=" : "x",
               sample[i].name, want ? want : "-", answer[i].text);
    }
    if (n > 0)
        say("exact %d of %d\n", equal, n);
    return true;
}

/* Is the image used?  The loss of the samples with their own and with others' images.
 */
static bool swap_print(struct session *s, struct view_of_model *v,
                       struct sample *sample, int n)
{
    struct evaluation own, swapped;
    if (!evaluate_samples(s, v, sample, n, &own))
        return false;
    if (own.ledger.supervised == 0) {
        fail("eval: --swap-images: no token of the %d sample(s) is supervised", n);
        return fail_kind(FAULT_DATA);
    }
    images_swap(sample, n);
    if (!evaluate_samples(s, v, sample, n, &swapped))
        return false;
    say("loss %.4f with their own images, %.4f with each other's: %+.4f nats\n",
           own.loss, swapped.loss, swapped.loss - own.loss);
    return true;
}

static bool data_open(struct session *s, const struct job *j)
{
    if (!session_data(s))
        return false;
    if (s->held || j->training)
        return true;
    fail("eval: data.hold_out is 0, nothing is held out; set it, or use --training to "
         "look at training samples");
    return fail_kind(FAULT_USAGE);
}

/* All ranks take the same views in the same order. */
static bool look(struct session *s, const struct job *j)
{
    bool leads = session_leads(s);
    struct sample *sample = NEW(&s->arena, struct sample, j->samples + 1);
    struct view_of_model *v = loss_view(s);
    int n = 0;
    if (!j->training &&
        !(leads ? loss_print(s, v) && session_end(s) : session_follow(s, &v)))
        return false;
    if (leads && !samples_pick(s, j->training ? s->mix : s->held, j->samples, &s->arena,
                               sample, &n))
        return false;
    if (!(leads ? answers_print(s, sample, n) : generate_follow(s)))
        return false;
    return !j->swap ||
           (leads ? (n == 0 || swap_print(s, v, sample, n)) && session_end(s)
                  : session_follow(s, &v));
}

static bool rank_run(struct job *j, const struct rank *rank)
{
    struct session s;
    bool ok = session_join(&s, j->recipe, false, rank, rank ? &j->crew : NULL) &&
              (!session_leads(&s) || data_open(&s, j)) && session_machine(&s) &&
              look(&s, j);
    session_close(&s);
    return ok;
}

static bool rank_main(struct rank *rank, void *arg)
{
    return rank_run(arg, rank);
}

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct job *j = NEW(arena, struct job, 1);
    const char *model = NULL, *ranks = NULL;
    *j = (struct job){.recipe = r, .samples = 4};
    const struct option option[] = {
        {"model", &model, NULL, NULL}, {"samples", NULL, &j->samples, NULL},
        {"training", NULL, NULL, &j->training},
        {"swap-images", NULL, NULL, &j->swap}, {"ranks", &ranks, NULL, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1))
        return false;
    override_add(&a, "parallel.ranks", ranks);
    if (!recipe_open(&a, r))
        return false;
    r->model_path = model ? model : r->model_path;
    r->model_weights = model_weights_load;
    int world = session_ranks(r);
    r->batch_rows = world;              /* training's; here rows go by eval.rows */
    return session_look(r, false) && session_layout(r, &j->crew.mesh) &&
           (world == 1 ? rank_run(j, NULL) : world_run(world, 0, rank_main, j));
}

const struct command command_eval = {
    "eval",
    "RECIPE [--model DIR] [--samples N] [--training] [--swap-images] [--ranks N] "
    "[section.key=value ...]",
    "held-out loss and answers of a model",
    "Prints the loss over eval.rows rows of the held-out split (data.hold_out) and "
    "the\n"
    "greedy answers to its first N samples (4), marked = where they equal the data "
    "exactly.\n"
    "--model: the folder to evaluate, else the recipe's.  --training: answers for "
    "training\n"
    "samples instead, in the order of the run.  --swap-images: their loss also with "
    "the\n"
    "images of other samples, which a model that looks at images cannot bear.  Runs\n"
    "in the layout of parallel.*, on parallel.ranks (--ranks) threads.\n\n"
    "example: vlmoe eval recipes/quickstart.yaml --model runs/quickstart/model "
    "--training --samples 20",
    run,
};
