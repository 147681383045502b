/* train.c - vlmoe train: trains what a recipe says. */
#include "cli/cli.h"

#include "train/train.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    const char *ranks = NULL;
    const struct option option[] = {{"ranks", &ranks, NULL, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1))
        return false;
    override_add(&a, "parallel.ranks", ranks);
    return recipe_open(&a, r) && train(r);
}

const struct command command_train = {
    "train",
    "RECIPE [--ranks N] [section.key=value ...]",
    "train; goes on from the newest checkpoint",
    "Trains the model of a recipe and writes run.folder/run.name: recipe.yaml,\n"
    "plan.txt, metrics.jsonl, TensorBoard events, samples, checkpoints and, at the "
    "end,\n"
    "the model as a Hugging Face folder.  Run again after a stop, it goes on by "
    "itself.\n"
    "--ranks N is short for parallel.ranks=N: so many ranks as threads, laid out by\n"
    "parallel.*; any number goes on from any other's state.\n\n"
    "example: vlmoe train recipes/quickstart.yaml train.steps=50 optim.lr=3e-4",
    run,
};
