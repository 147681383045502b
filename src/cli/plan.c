/* plan.c - vlmoe plan: what a training step will do and need, without doing it. */
#include "cli/cli.h"

#include "train/outlook.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct text t = text_make(arena);
    bool explain = false;
    const struct option option[] = {{"explain", NULL, NULL, &explain}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1) ||
        !recipe_open(&a, r))
        return false;
    bool ok = outlook(r, explain, &t);
    fputs(t.at, stdout);
    return ok;
}

const struct command command_plan = {
    "plan",
    "RECIPE [--explain] [section.key=value ...]",
    "memory, work and steps of a training step; needs no data",
    "Prints what trains, the memory a step needs by kind and component, its work, and "
    "with\n"
    "--explain every step of the plan with its lane and waits.  Says `fits`, or exits "
    "with 6\n"
    "and names what to change.\n\n"
    "example: vlmoe plan recipes/quickstart.yaml --explain memory.recompute=decoder.*",
    run,
};
