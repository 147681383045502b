/* arguments.c - options, positional arguments and recipe overrides of a command line.
 */
#include "cli/cli.h"

#include "base/log.h"
#include "base/text.h"

static bool is_override(const char *text)
{
    const char *equals = strchr(text, '='), *dot = strchr(text, '.');
    return equals && dot && dot < equals && *text != '-' && !memchr(text, '/',
                                                          (size_t)(equals - text));
}

static bool unknown_option(const char *text, const struct option *option, int options)
{
    struct arena a = arena_make("message");
    const char **name = NEW(&a, const char *, options + 1);
    for (int i = 0; i < options; i++)
        name[i] = option[i].name;
    if (options)
        fail("vlmoe: no option '%s'; nearest is '--%s'", text,
             text_nearest(text + 2, name, options));
    else
        fail("vlmoe: this command takes no options, got '%s'", text);
    arena_free(&a);
    return false;
}

/* Takes argv[*i] and perhaps the next as one option. */
static bool option_read(int argc, char **argv, int *i, const struct option *option,
                        int options)
{
    const char *text = argv[*i];
    const struct option *o = NULL;
    for (int k = 0; k < options; k++)
        if (!strcmp(text + 2, option[k].name) || (!strcmp(text, "-n") &&
                                                  !strcmp(option[k].name, "count")))
            o = &option[k];
    if (!o)
        return unknown_option(text, option, options);
    if (o->flag) {
        *o->flag = true;
        return true;
    }
    if (++*i == argc)
        return fail("vlmoe: option %s needs a value", text);
    if (o->text && o->count)
        o->text[(*o->count)++] = argv[*i];
    else if (o->text)
        *o->text = argv[*i];
    else if (!text_integer(argv[*i], o->count) || *o->count < 0)
        return fail("vlmoe: option %s: '%s' is not a whole number from 0 up", text,
                    argv[*i]);
    return true;
}

/* Too many or too few; an argument that may be meant as an override is named. */
static bool count_fail(const struct arguments *a, int least, int most)
{
    for (int i = least; i < a->count; i++) {
        const char *text = a->at[i], *equals = strchr(text, '=');
        size_t n = equals ? (size_t)(equals - text) : strlen(text);
        const char *key = recipe_key_like(a->arena, arena_copy(a->arena, text, n));
        if (equals && key)
            return fail("vlmoe: '%s': a setting is named section.key=value; nearest is "
                        "'%s%s'", text, key, equals);
        if (key && !strncmp(key, text, n) && !key[n])
            return fail("vlmoe: '%s' is a setting; set it with an equals sign: "
                        "%s=%s", text, key, i + 1 < a->count ? a->at[i + 1] : "VALUE");
    }
    return fail("vlmoe: %d argument(s), this command takes %d%s%.0d; see --help",
                a->count, least, most > least ? " to " : "", most > least ? most : 0);
}

bool arguments_read(struct arguments *a, int argc, char **argv,
                    const struct option *option, int options, int least, int most)
{
    a->at = NEW(a->arena, const char *, argc + 1);
    a->override = NEW(a->arena, const char *, argc + 1);
    bool ok = true;
    for (int i = 0; i < argc && ok; i++) {
        if (text_starts(argv[i], "--") || !strcmp(argv[i], "-n"))
            ok = option_read(argc, argv, &i, option, options);
        else if (is_override(argv[i]))
            a->override[a->overrides++] = argv[i];
        else
            a->at[a->count++] = argv[i];
    }
    if (ok && (a->count < least || a->count > most))
        ok = count_fail(a, least, most);
    return ok || fail_kind(FAULT_USAGE);
}

void override_add(struct arguments *a, const char *key, const char *value)
{
    if (value)                          /* there is room: the option was an argument */
        a->override[a->overrides++] = arena_text(a->arena, "%s=%s", key, value);
}

bool recipe_open(struct arguments *a, struct recipe *out)
{
    if (!recipe_read(a->arena, a->at[0], a->override, a->overrides, out))
        return false;
    switch (out->run_log) {
    case run_log_debug: log_set(LOG_DEBUG, 0); break;
    case run_log_info: log_set(LOG_INFO, 0); break;
    case run_log_warn: log_set(LOG_WARN, 0); break;
    }
    return true;
}
