/* train.c - vlmoe train: trains what a recipe says. */
#include "cli/cli.h"

#include "train/train.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    int64_t ranks = 1;
    const struct option option[] = {{"ranks", NULL, &ranks, NULL}};
    return arguments_read(&a, argc, argv, option, COUNT(option), 1, 1) &&
           recipe_open(&a, r) && train(r, (int)MIN(ranks, INT32_MAX));
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
    "--ranks starts N ranks as threads, laid out by parallel.*; any number goes on "
    "from\n"
    "any other's state.\n\n"
    "example: vlmoe train recipes/quickstart.yaml train.steps=50 optim.lr=3e-4",
    run,
};
