/* cli.h - what the command files share: a table entry each, and how arguments are read.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "base/arena.h"
#include "recipe/recipe.h"

/* An option a command takes: --name VALUE into *text or *count, or --name into *flag.
 * With text and count it may be given again: the *count values are text[0], text[1]...
 */
struct option {
    const char *name;
    const char **text;
    int64_t *count;
    bool *flag;
};

struct arguments {                      /* what is left after the options */
    struct arena *arena;
    int count;
    const char **at;                    /* positional, in order */
    int overrides;
    const char **override;              /* section.key=value */
};

/* Sort argv into options, positional arguments (least..most of them) and overrides.
 * Fails (usage) naming the nearest option. */
MUST_USE bool arguments_read(struct arguments *a, int argc, char **argv,
                             const struct option *option, int options, int least,
                             int most);

struct command {
    const char *name, *usage, *summary;
    const char *help;                   /* what it does, options, an example */
    bool (*run)(struct arena *a, int argc, char **argv); /* argv after the name */
};

extern const struct command command_train, command_plan, command_generate, command_eval,
    command_parity, command_profile, command_report, command_data, command_convert,
    command_doctor;

/* To standard output, as text_show() does. */
void say(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* The kept message, to standard error. */
void say_failure(void);
/* The part of the help of `vlmoe data` about one of its verbs; NULL: it is none. */
const char *data_help(const char *word);
/* An option that is short for a setting: one more override, unless `value` is NULL. */
void override_add(struct arguments *a, const char *key, const char *value);
/* The recipe a command names, with its overrides; sets the log level. */
MUST_USE bool recipe_open(struct arguments *a, struct recipe *out);

#endif
