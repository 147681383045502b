/* plan.c - vlmoe plan: what a training step will do and need, without doing it. */
#include "cli/cli.h"

#include "outlook/outlook.h"

#include <signal.h>

static volatile sig_atomic_t stopping;

static void stop_soon(int signal_number)
{
    (void)signal_number;
    stopping = 1;
}

/* The first signal ends a search with the best so far, a second one the program. */
static void signals_take(void)
{
    struct sigaction act = {.sa_handler = stop_soon, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct text t = text_make(arena);
    struct outlook_options o = {.rank = -1};
    const char *world = NULL, *ranks = NULL;
    bool search = false;
    const struct option option[] = {
        {"world", &world, NULL, NULL}, {"ranks", &ranks, NULL, NULL},
        {"rank", NULL, &o.rank, NULL},
        {"hardware", &o.hardware, NULL, NULL}, {"explain", NULL, NULL, &o.explain},
        {"search", NULL, NULL, &search}, {"json", NULL, NULL, &o.json},
    };
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1))
        return false;
    if (world && ranks) {
        fail("plan: --world and --ranks are one setting (parallel.ranks); leave one of "
             "them out");
        return fail_kind(FAULT_USAGE);
    }
    override_add(&a, "parallel.ranks", world ? world : ranks);
    if (!recipe_open(&a, r))
        return false;
    if (search && o.rank >= 0) {
        fail("plan: --rank shows one rank of one layout, --search looks for layouts; "
             "leave one of them out");
        return fail_kind(FAULT_USAGE);
    }
    o.stop = &stopping;
    if (search)
        signals_take();
    bool ok = search ? outlook_search(r, &o, &t) : outlook(r, &o, &t);
    say("%s", t.at);
    return ok;
}

const struct command command_plan = {
    "plan",
    "RECIPE [--ranks N] [--rank R] [--hardware NAME] [--explain] [--search] [--json] "
    "[section.key=value ...]",
    "layout, memory, traffic and predicted time of a step; needs no data, no GPU",
    "Prints the layout, the memory a rank needs by kind and component, messages by\n"
    "group and link, and the predicted time of a step.  Says `fits`, or exits with 6\n"
    "and names what to change.\n\n"
    "  --ranks N        short for parallel.ranks=N, as in train (--world N: the same)\n"
    "  --rank R         show this rank (default: the one that needs most memory)\n"
    "  --hardware NAME  h100, h200, b200, gb200, cpu, or a file; recipes/hardware\n"
    "  --explain        list every step with its lane and waits\n"
    "  --json           one JSON object instead of text\n"
    "  --search         try layouts, recompute and row sizes; say which is fastest\n"
    "                   and why the others lose, with --explain of each; Ctrl-C\n"
    "                   ends it with the best so far (exit code 0)\n\n"
    "example: vlmoe plan recipes/qwen3-vl-30b-a3b-8.yaml --hardware h200", run,
};
