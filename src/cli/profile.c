/* profile.c - vlmoe profile: where the time of a training step goes. */
#include "cli/cli.h"

#include "train/profile.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct text t = text_make(arena);
    struct profile p;
    const char *trace = NULL;
    int64_t steps = 10, warmup = 3;
    const struct option option[] = {
        {"steps", NULL, &steps, NULL}, {"warmup", NULL, &warmup, NULL},
        {"trace", &trace, NULL, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1) ||
        !recipe_open(&a, r))
        return false;
    if (steps == 0) {
        fail("profile: --steps 0 measures nothing");
        return fail_kind(FAULT_USAGE);
    }
    if (!profile_run(arena, r, warmup, steps, trace, &p))
        return false;
    profile_print(&p, &t);
    say("%s", t.at);
    if (trace)
        say("\ntrace of the last step: %s (open it in ui.perfetto.dev)\n", trace);
    return true;
}

const struct command command_profile = {
    "profile",
    "RECIPE [--steps N] [--warmup N] [--trace FILE] [section.key=value ...]",
    "time of a step by component and segment, trace of the lanes",
    "Trains N steps (10) after a warmup (3) on the recipe's data and prints where a "
    "step's\n"
    "time goes: data wait, vision, projector, attention, router, experts, head, "
    "optimizer,\n"
    "idle.  The rows add up to the step.  --trace writes a Perfetto trace of one "
    "step.\n"
    "Nothing is saved.\n\n"
    "example: vlmoe profile recipes/quickstart.yaml --trace trace.json",
    run,
};
