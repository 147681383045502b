/* data.c - vlmoe data sample|image|check|pack: what the loader makes of data. */
#include "cli/cli.h"

#include "base/log.h"
#include "base/text.h"
#include "train/inspect.h"

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
    log_set(LOG_WARN, 0);
    bool ok = inspect_rows(r, count, &t);
    fputs(t.at, stdout);
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
        {"min-pixels", NULL, &o.min_pixels, NULL},
        {"max-pixels", NULL, &o.max_pixels, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, argc))
        return false;
    bool ok = inspect_images(&o, a.at, a.count, &t);
    fputs(t.at, stdout);
    return ok;
}

static bool check(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct text t = text_make(arena);
    if (!arguments_read(&a, argc, argv, NULL, 0, 1, 1) || !recipe_open(&a, r))
        return false;
    log_set(LOG_WARN, 0);
    bool ok = inspect_data(r, &t);
    fputs(t.at, stdout);
    return ok;
}

static bool pack(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct text t = text_make(arena);
    struct inspect_pack o = {.format = "auto", .shard_mb = 256};
    const struct option option[] = {
        {"format", &o.format, NULL, NULL}, {"images", &o.images, NULL, NULL},
        {"shard-mb", NULL, &o.shard_mb, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 2, 2))
        return false;
    o.from = a.at[0];
    o.to = a.at[1];
    bool ok = inspect_shards(&o, &t);
    fputs(t.at, stdout);
    return ok;
}

static const struct {
    const char *name;
    bool (*run)(struct arena *, int, char **);
} verb[] = {
    {"sample", sample},
    {"image", image},
    {"check", check},
    {"pack", pack},
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

const struct command command_data = {
    "data",
    "sample|image|check|pack ...",
    "what the loader makes of data",
    "data sample RECIPE [-n N]       N packed rows: position, piece, input id, target "
    "id,\n"
    "                                weight, image span of every token\n"
    "data image FILE... [--out F.safetensors] [--model DIR] [--rule torchvision|pil]\n"
    "     [--exif apply|ignore] [--min-pixels N] [--max-pixels N]\n"
    "                                grid, tokens and patches of images; --out writes "
    "them\n"
    "data check RECIPE               reads every sample: counts, bad ones by cause, "
    "token\n"
    "                                and patch histograms; exits 3 if a sample is bad\n"
    "data pack SRC DST [--format F] [--images DIR] [--shard-mb N]\n"
    "                                WebDataset shards and their index from any "
    "source\n\n"
    "example: vlmoe data image photo.jpg --out photo.safetensors",
    run,
};
