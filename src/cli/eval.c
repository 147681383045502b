/* eval.c - vlmoe eval: held-out loss of a model, and some of its answers. */
#include "cli/cli.h"

#include "train/evaluate.h"
#include "train/generate.h"

#include <inttypes.h>

static bool loss_print(struct session *s, int64_t rows)
{
    struct model_purpose loss =
        purpose_train(s->recipe, &s->model.config, s->model.frozen);
    struct view_of_model *v = session_view(s, &loss, &s->model.capacity);
    struct evaluation e;
    if (!machine_use(s->machine, v->plan) || !evaluate(s, v, rows, &e))
        return false;
    if (e.ledger.supervised == 0) {
        fail("eval: no held-out sample can be used, of %" PRId64,
             mix_epoch_samples(s->held));
        return fail_kind(FAULT_DATA);
    }
    printf("loss %.6f  supervised tokens %" PRId64 "  samples %" PRId64
           "  images %" PRId64 "  rows %" PRId64 "\n",
           e.loss, e.ledger.supervised, e.ledger.samples, e.ledger.images, e.rows);
    return true;
}

/* How many of the answers equal the data's exactly. */
static bool answers_print(struct session *s, struct arena *a,
                          const struct sample *sample, int n, int64_t tokens)
{
    struct model_purpose best = purpose_generate(s->recipe);
    struct view_of_model *v = session_view(s, &best, &s->model.capacity);
    struct answer *answer = NEW(a, struct answer, n + 1);
    int equal = 0;
    if (!machine_use(s->machine, v->plan) ||
        !generate(s, v, a, sample, n, (int)tokens, answer))
        return false;
    for (int i = 0; i < n; i++) {
        const char *want = sample_answer(&sample[i], a);
        bool same = want && !strcmp(want, answer[i].text);
        equal += same;
        printf("%s %s\n    data:  %s\n    model: %s\n", same ? "=" : "x",
               sample[i].name, want ? want : "-", answer[i].text);
    }
    printf("exact %d of %d\n", equal, n);
    return true;
}

/* Is the image used?  The loss of the samples with their own and with others' images.
 */
static bool swap_print(struct session *s, struct sample *sample, int n)
{
    struct model_purpose loss =
        purpose_train(s->recipe, &s->model.config, s->model.frozen);
    struct view_of_model *v = session_view(s, &loss, &s->model.capacity);
    struct evaluation own, swapped;
    if (!machine_use(s->machine, v->plan) || !evaluate_samples(s, v, sample, n, &own))
        return false;
    images_swap(sample, n);
    if (!evaluate_samples(s, v, sample, n, &swapped))
        return false;
    printf("loss %.4f with their own images, %.4f with each other's: %+.4f nats\n",
           own.loss, swapped.loss, swapped.loss - own.loss);
    return true;
}

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct session *s = NEW(arena, struct session, 1);
    const char *model = NULL;
    int64_t samples = 4;
    bool training = false, swap = false;
    const struct option option[] = {
        {"model", &model, NULL, NULL}, {"samples", NULL, &samples, NULL},
        {"training", NULL, NULL, &training}, {"swap-images", NULL, NULL, &swap}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1) ||
        !recipe_open(&a, r))
        return false;
    r->model_path = model ? model : r->model_path;
    r->model_weights = "load";
    bool ok = session_open(s, r, false) && session_data(s);
    if (ok && !s->held && !training) {
        ok = fail(
            "eval: data.hold_out is 0, nothing is held out; set it, or use --training "
            "to look at training samples");
        fail_kind(FAULT_USAGE);
    }
    struct sample *sample = NEW(arena, struct sample, samples + 1);
    int n = 0;
    ok = ok && session_machine(s) && (training || loss_print(s, r->eval_rows)) &&
         samples_pick(s, training ? s->mix : s->held, samples, arena, sample, &n) &&
         (n == 0 || answers_print(s, arena, sample, n, r->sample_tokens)) &&
         (n == 0 || !swap || swap_print(s, sample, n));
    session_close(s);
    return ok;
}

const struct command command_eval = {
    "eval",
    "RECIPE [--model DIR] [--samples N] [--training] [--swap-images] "
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
    "images of other samples, which a model that looks at images cannot bear.\n\n"
    "example: vlmoe eval recipes/quickstart.yaml --model runs/quickstart/model "
    "--training --samples 20",
    run,
};
