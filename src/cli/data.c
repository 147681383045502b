/* data.c - vlmoe data sample|image|check|pack: what the loader makes of data. */
#include "cli/cli.h"

#include "base/log.h"
#include "base/text.h"
#include "tools/inspect.h"

#define WIDE "                                "
#define HELP_SAMPLE \
    "data sample RECIPE [-n N]       N packed rows (1): position, piece, input id,\n" \
    WIDE "target id, weight, image feature of every token\n"
#define HELP_IMAGE \
    "data image FILE... [--out F.safetensors] [--model DIR] [--exif apply|ignore]\n" \
    "     [--alpha white|drop] [--rule torchvision|pil] [--min-pixels N]\n" \
    "     [--max-pixels N]\n" \
    WIDE "grid, tokens and patches of images; --out writes them\n"
#define HELP_CHECK \
    "data check RECIPE               reads every sample: counts, bad ones by cause,\n" \
    WIDE "token and patch histograms; exits 3 where training\n" \
    WIDE "would stop, by data.bad and data.too_long\n"
#define HELP_PACK \
    "data pack SRC DST [--format F] [--images DIR] [--ignore 'KEY ...'] [--skip]\n" \
    "     [--shard-mb N]\n" \
    WIDE "WebDataset shards and their index from any source\n" \
    WIDE "into a new folder; names what cannot be read, and\n" \
    WIDE "exits 3 without the folder, or --skip leaves it out\n"

static bool sample(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct text t = text_make(arena);
    int64_t count = 1;
    const struct option option[] = {{"count", NULL, &count, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1) ||
        !recipe_open(&a, r))
        return false;
    if (count == 0) {
        fail("data: -n 0 asks for no row");
        return fail_kind(FAULT_USAGE);
    }
    log_set(LOG_WARN, 0);
    bool ok = inspect_rows(r, count, &t);
    say("%s", t.at);
    return ok;
}

static bool image(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct text t = text_make(arena);
    struct inspect_image o = {.model = NULL};
    const struct option option[] = {
        {"out", &o.out, NULL, NULL}, {"model", &o.model, NULL, NULL},
        {"rule", &o.rule, NULL, NULL}, {"exif", &o.exif, NULL, NULL},
        {"alpha", &o.alpha, NULL, NULL},
        {"min-pixels", NULL, &o.min_pixels, NULL},
        {"max-pixels", NULL, &o.max_pixels, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, argc))
        return false;
    bool ok = inspect_images(&o, a.at, a.count, &t);
    say("%s", t.at);
    return ok;
}

static void tell(const char *text)
{
    say("%s", text);
}

static bool check(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    if (!arguments_read(&a, argc, argv, NULL, 0, 1, 1) || !recipe_open(&a, r))
        return false;
    log_set(r->run_log != run_log_warn ? LOG_PROGRESS : LOG_WARN, 0);
    return inspect_data(r, tell);
}

static bool pack(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct text t = text_make(arena);
    struct inspect_pack o = {.format = "auto", .shard_mb = 256};
    const struct option option[] = {
        {"format", &o.format, NULL, NULL}, {"images", &o.images, NULL, NULL},
        {"ignore", &o.ignore, NULL, NULL}, {"shard-mb", NULL, &o.shard_mb, NULL},
        {"skip", NULL, NULL, &o.skip}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 2, 2))
        return false;
    if (o.shard_mb == 0) {
        fail("data: --shard-mb 0 leaves no room for samples");
        return fail_kind(FAULT_USAGE);
    }
    o.from = a.at[0];
    o.to = a.at[1];
    bool ok = inspect_shards(&o, &t);
    say("%s", t.at);
    return ok;
}

static const struct {
    const char *name;
    bool (*run)(struct arena *, int, char **);
    const char *help;
} verb[] = {
    {"sample", sample, HELP_SAMPLE},
    {"image", image, HELP_IMAGE},
    {"check", check, HELP_CHECK},
    {"pack", pack, HELP_PACK},
};

static bool run(struct arena *arena, int argc, char **argv)
{
    const char *name[COUNT(verb)];
    for (int i = 0; i < COUNT(verb); i++) {
        name[i] = verb[i].name;
        if (argc > 0 && !strcmp(argv[0], verb[i].name))
            return verb[i].run(arena, argc - 1, argv + 1);
    }
    if (argc == 0)
        fail("data: say what to do: sample, image, check or pack; see vlmoe data "
             "--help");
    else
        fail("data: no 'data %s'; nearest is 'data %s'", argv[0],
             text_nearest(argv[0], name, COUNT(verb)));
    return fail_kind(FAULT_USAGE);
}

const char *data_help(const char *word)
{
    for (int i = 0; i < COUNT(verb); i++)
        if (!strcmp(word, verb[i].name))
            return verb[i].help;
    return NULL;
}

const struct command command_data = {
    "data",
    "sample|image|check|pack ...",
    "what the loader makes of data",
    HELP_SAMPLE HELP_IMAGE HELP_CHECK HELP_PACK
    "\nexample: vlmoe data image docs/images/captions.png --max-pixels 65536",
    run,
};
