/* main.c - the table of commands; the only place that turns a failure into an exit
 * code. */
#include "cli/cli.h"

#include "base/log.h"
#include "base/text.h"

#include <signal.h>
#include <stdlib.h>

static const struct command *const command[] = {
    &command_train, &command_plan, &command_generate, &command_eval, &command_parity,
    &command_profile, &command_report, &command_data, &command_convert, &command_doctor,
};

static void usage(FILE *f)
{
    fprintf(f, "vlmoe " VLMOE_VERSION
               ": trains multimodal mixture-of-experts vision-language "
               "models from real images\n\nusage: vlmoe COMMAND ...\n\n");
    for (int i = 0; i < COUNT(command); i++)
        fprintf(f, "  %-10s%s\n", command[i]->name, command[i]->summary);
    fprintf(
        f,
        "\nvlmoe COMMAND --help tells more.  Recipe values are overridden by trailing "
        "section.key=value.\nExit codes: 0 done or stopped by a signal, 2 usage, "
        "recipe or an output that cannot be\nwritten, 3 data, 4 checkpoint or model, 5 "
        "not finite, 6 does not fit, 7 lost or hung rank,\n8 refused, 70 bug.\n");
}

static const struct command *command_find(const char *name)
{
    const char *names[COUNT(command)];
    for (int i = 0; i < COUNT(command); i++) {
        if (!strcmp(command[i]->name, name))
            return command[i];
        names[i] = command[i]->name;
    }
    if (text_ends(name, ".yaml") || text_ends(name, ".yml"))
        fail("vlmoe: %s is a recipe, not a command; to train it: vlmoe train %s", name,
             name);
    else
        fail("vlmoe: no command '%s'; nearest is '%s'", name,
         text_nearest(name, names, COUNT(names)));
    fail_kind(FAULT_USAGE);
    return NULL;
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return true;
    return false;
}

/* `vlmoe help COMMAND` is `vlmoe COMMAND --help`. */
static void help_turn(int argc, char **argv)
{
    static char option[] = "--help";
    if (argc < 2 || strcmp(argv[1], "help"))
        return;
    argv[1] = argc > 2 ? argv[2] : option;
    if (argc > 2)
        argv[2] = option;
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN);           /* a file at its size limit is a failed write */
    help_turn(argc, argv);
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        usage(argc < 2 ? stderr : stdout);
        return argc < 2 ? FAULT_USAGE : EXIT_SUCCESS;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("vlmoe " VLMOE_VERSION "\n");
        return EXIT_SUCCESS;
    }
    const struct command *c = command_find(argv[1]);
    if (c && wants_help(argc, argv)) {
        const char *part = c == &command_data ? data_help(argv[2]) : NULL;
        if (part)
            printf("usage: vlmoe %s", part);
        else
            printf("usage: vlmoe %s %s\n\n%s\n", c->name, c->usage, c->help);
        return EXIT_SUCCESS;
    }
    struct arena a = arena_make("command");
    bool ok = c && c->run(&a, argc - 2, argv + 2);
    if (!ok)
        say_failure();
    arena_free(&a);
    if (ok && (fflush(stdout) || ferror(stdout))) {
        fprintf(stderr, "vlmoe: standard output: cannot be written\n");
        return FAULT_USAGE;
    }
    return ok ? EXIT_SUCCESS : fail_fault() ? (int)fail_fault() : FAULT_USAGE;
}
