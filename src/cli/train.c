/* train.c - vlmoe train: trains what a recipe says. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/stop.h"
#include "tools/page.h"
#include "train/train.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    stop_listen();
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    const char *ranks = NULL, **key = NEW(arena, const char *, argc + 1);
    int64_t keys = 0;
    const struct option option[] = {{"ranks", &ranks, NULL, NULL},
                                    {"allow-changed", key, &keys, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1))
        return false;
    override_add(&a, "parallel.ranks", ranks);
    const struct allowed allowed = {key, (int)keys};
    return allowed_check(&allowed) && recipe_open(&a, r) && train(r, &allowed) &&
           page_renew(path_join(arena, r->run_folder, r->run_name));
}

const struct command command_train = {
    "train",
    "RECIPE [--ranks N] [--allow-changed KEY]... [section.key=value ...]",
    "train; goes on from the newest checkpoint",
    "Trains the model of a recipe and writes run.folder/run.name: recipe.yaml,\n"
    "plan.txt, metrics.jsonl, TensorBoard events, samples, checkpoints and, at the "
    "end,\n"
    "the model as a Hugging Face folder.  Run again after a stop, it goes on by "
    "itself.\n"
    "--ranks N is short for parallel.ranks=N: so many ranks as threads, laid out by\n"
    "parallel.*; any number goes on from any other's state.  Going on, a run "
    "keeps\nwhat decides which samples it trains on and how they look\n"
    "(docs/recipes.md); --allow-changed KEY lets such a setting, or\n"
    "data.sources, change all the same.\n\n"
    "example: vlmoe train recipes/quickstart.yaml train.steps=50 optim.lr=3e-4",
    run,
};
