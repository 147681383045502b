/* train.c - vlmoe train: trains what a recipe says. */
#include "cli/cli.h"

#include "train/train.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    return arguments_read(&a, argc, argv, NULL, 0, 1, 1) && recipe_open(&a, r) &&
           train(r);
}

const struct command command_train = {
    "train",
    "RECIPE [section.key=value ...]",
    "train; goes on from the newest checkpoint",
    "Trains the model of a recipe and writes run.folder/run.name: recipe.yaml, "
    "plan.txt,\n"
    "metrics.jsonl, TensorBoard events, samples, checkpoints and, at the end, the "
    "model as\n"
    "a Hugging Face folder.  Run again after a stop, it goes on by itself.\n\n"
    "example: vlmoe train recipes/quickstart.yaml train.steps=50 optim.lr=3e-4",
    run,
};
