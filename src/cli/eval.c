/* eval.c - vlmoe eval: held-out loss of a model, and some of its answers. */
#include "cli/cli.h"

#include "train/evaluate.h"
#include "train/generate.h"

#include <inttypes.h>

static bool loss_print(struct session *s, int64_t rows)
{
    struct model_purpose loss = purpose_train(s->recipe, &s->model.config, s->model.frozen);
    struct view_of_model *v = session_view(s, &loss, &s->model.capacity);
    struct evaluation e;
    if (!machine_use(s->machine, v->plan) || !evaluate(s, v, rows, &e))
        return false;
    printf("loss %.6f  supervised tokens %" PRId64 "  samples %" PRId64 "  images %" PRId64
           "  rows %" PRId64 "\n", e.loss, e.ledger.supervised, e.ledger.samples,
           e.ledger.images, e.rows);
    return true;
}

/* Answers to the first `count` samples; how many equal the data's exactly. */
static bool answers_print(struct session *s, struct arena *a, const struct mix *mix,
                          int64_t count, int64_t tokens)
{
    struct model_purpose best = purpose_generate(s->recipe);
    struct view_of_model *v = session_view(s, &best, &s->model.capacity);
    struct sample *sample = NEW(a, struct sample, count + 1);
    struct answer *answer = NEW(a, struct answer, count + 1);
    int n = 0, equal = 0;
    for (int64_t p = 0; n < count && p < mix_epoch_samples(mix); p++) {
        struct mix_place at = mix_at(mix, p);
        if (!source_read(mix_part(mix, at.part)->source, at.index, a, &sample[n]))
            return fail_kind(FAULT_DATA);
        n++;
    }
    if (!machine_use(s->machine, v->plan) ||
        !generate(s, v, a, sample, n, (int)tokens, answer))
        return false;
    for (int i = 0; i < n; i++) {
        const char *want = sample_answer(&sample[i], a);
        bool same = want && !strcmp(want, answer[i].text);
        equal += same;
        printf("%s %s\n    data:  %s\n    model: %s\n", same ? "=" : "x", sample[i].name,
               want ? want : "-", answer[i].text);
    }
    printf("exact %d of %d\n", equal, n);
    return true;
}

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct session *s = NEW(arena, struct session, 1);
    const char *model = NULL;
    int64_t samples = 4;
    bool training = false;
    const struct option option[] = {
        {"model", &model, NULL, NULL}, {"samples", NULL, &samples, NULL},
        {"training", NULL, NULL, &training}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1) || !recipe_open(&a, r))
        return false;
    r->model_path = model ? model : r->model_path;
    r->model_weights = "load";
    bool ok = session_open(s, r, false) && session_data(s);
    if (ok && !s->held && !training) {
        ok = fail("eval: data.hold_out is 0, nothing is held out; set it, or use --training "
                  "to look at training samples");
        fail_kind(FAULT_USAGE);
    }
    ok = ok && session_machine(s) && (training || loss_print(s, r->eval_rows)) &&
         (samples == 0 || answers_print(s, arena, training ? s->mix : s->held, samples,
                                        r->sample_tokens));
    session_close(s);
    return ok;
}

const struct command command_eval = {
    "eval", "RECIPE [--model DIR] [--samples N] [--training] [section.key=value ...]",
    "held-out loss and answers of a model",
    "Prints the loss over eval.rows rows of the held-out split (data.hold_out) and the\n"
    "greedy answers to its first N samples (4), marked = where they equal the data exactly.\n"
    "--model: the folder to evaluate, else the recipe's.  --training: answers for training\n"
    "samples instead, in the order of the run.\n\n"
    "example: vlmoe eval recipes/quickstart.yaml --model runs/quickstart/model --samples 20",
    run,
};
