/* parity.c - vlmoe parity: loss and gradients on another framework's inputs. */
#include "cli/cli.h"

#include "base/file.h"
#include "tools/parity.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct parity p;
    const char *out = NULL;
    const struct option option[] = {{"out", &out, NULL, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 2, 2) ||
        !parity_run(arena, a.at[0], a.at[1], &p))
        return false;
    say("loss %.9g  cross_entropy %.9g  aux_loss %.9g  aux_coef %g\n", p.loss,
           p.cross_entropy, p.aux_loss, p.aux_coef);
    say("logits of the first tokens:\n");
    for (int64_t t = 0; t < MIN(p.tokens, 4); t++)
        for (int64_t v = 0; v < MIN(p.vocabulary, 4); v++)
            say("%14.9f%s", (double)p.logits[t * p.vocabulary + v],
                   v == MIN(p.vocabulary, 4) - 1 ? "\n" : "");
    for (int64_t i = 0; i < p.ngrad; i++)
        say("grad norm %.9e sum %+.9e  %s\n", p.grad[i].norm, p.grad[i].sum,
               p.grad[i].name);
    if (!out)
        return true;
    char *json = parity_json(arena, &p);
    return file_replace(out, json, (int64_t)strlen(json));
}

const struct command command_parity = {
    "parity",
    "MODEL CASE.safetensors [--out FILE.json]",
    "loss and every gradient on given inputs, to compare frameworks",
    "Runs one forward and backward of a model folder on the inputs of a case file\n"
    "(input_ids, labels, attention_mask, pixel_values, image_grid_thw) and prints "
    "loss,\n"
    "auxiliary loss, first logits and each gradient's norm and sum; --out writes "
    "them.\nThe other framework writes the case file.\n\n"
    "example: vlmoe parity runs/quickstart/model "
    "tests/model/golden/parity.safetensors --out mine.json",
    run,
};
