/* doctor.c - vlmoe doctor: what this machine has, and what it lacks. */
#include "cli/cli.h"

#include "tools/doctor.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    if (!arguments_read(&a, argc, argv, NULL, 0, 0, 0))
        return false;
    struct text t = text_make(arena);
    text_add(&t, "vlmoe " VLMOE_VERSION "\n\ndevices\n");
    report_devices(&t);
    text_add(&t, "\nlibraries\n");
    report_libraries(&t);
    text_add(&t, "\nlimits\n");
    report_limits(&t);
    say("%s", t.at);
    return true;
}

const struct command command_doctor = {
    "doctor",
    "",
    "devices, libraries, versions and limits of this machine",
    "Prints what the program was built with and finds here; exits 0 if it can "
    "train.\n\n"
    "example: vlmoe doctor",
    run,
};
