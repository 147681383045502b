/* report.c - vlmoe report: a run as one page. */
#include "cli/cli.h"

#include "tools/page.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    if (!arguments_read(&a, argc, argv, NULL, 0, 1, 1) || !page_write(a.at[0]))
        return false;
    say("wrote %s/report.html\n", a.at[0]);
    return true;
}

const struct command command_report = {
    "report",
    "RUN",
    "a run as one HTML page: curves, books, samples",
    "Writes RUN/report.html (one file, no outside links) and RUN/loss.svg from a "
    "run's\n"
    "metrics.jsonl, recipe.yaml and newest samples.  Training does the same at its "
    "end.\n\n"
    "example: vlmoe report runs/quickstart",
    run,
};
