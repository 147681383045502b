/* profile.c - vlmoe profile: where the time of a training step goes. */
#include "cli/cli.h"

#include "tools/profile.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct text t = text_make(arena);
    struct profile *p;
    struct profile_options o = {.warmup = 3, .steps = 10};
    const char *ranks = NULL;
    const struct option option[] = {
        {"steps", NULL, &o.steps, NULL}, {"warmup", NULL, &o.warmup, NULL},
        {"trace", &o.trace, NULL, NULL}, {"ranks", &ranks, NULL, NULL},
        {"rank", NULL, &o.rank, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1))
        return false;
    override_add(&a, "parallel.ranks", ranks);
    if (!recipe_open(&a, r))
        return false;
    if (o.steps == 0) {
        fail("profile: --steps 0 measures nothing");
        return fail_kind(FAULT_USAGE);
    }
    if (!profile_run(arena, r, &o, &p))
        return false;
    profile_print(p, o.rank, &t);
    say("%s", t.at);
    if (o.trace)
        say("\ntrace of the last step: %s (open it in ui.perfetto.dev)\n", o.trace);
    return true;
}

const struct command command_profile = {
    "profile",
    "RECIPE [--steps N] [--warmup N] [--trace FILE] [--ranks N] [--rank R] "
    "[section.key=value ...]",
    "time of a step by component and segment, trace of the lanes",
    "Trains N steps (10) after a warmup (3) on the recipe's data and prints where a "
    "step's\n"
    "time goes: data wait, vision, projector, attention, router, experts, head, "
    "optimizer,\n"
    "idle.  The rows add up to the step.  --trace writes a Perfetto trace of one "
    "step.\n"
    "Nothing is saved.  Of several ranks (--ranks N is short for parallel.ranks) it\n"
    "says what each computes and waits for, and the components of rank R (0).\n\n"
    "example: vlmoe profile recipes/quickstart.yaml --trace trace.json",
    run,
};
