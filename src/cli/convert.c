/* convert.c - vlmoe convert: model folders and training states to model folders. */
#include "cli/cli.h"

#include "base/file.h"
#include "tools/convert.h"
#include "train/choices.h"

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct convert_options o = {0};
    const char *experts = NULL, *dtype = NULL;
    int layout = checkpoint_experts_auto, type = checkpoint_dtype_f32;
    int64_t megabytes = 5000;
    const struct option option[] = {
        {"dtype", &dtype, NULL, NULL},       {"like", &o.like, NULL, NULL},
        {"experts", &experts, NULL, NULL},   {"force", NULL, NULL, &o.force},
        {"shard-mb", NULL, &megabytes, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 2, 2))
        return false;
    if (dtype && !recipe_choice("checkpoint.dtype", dtype, &type)) {
        fail("convert: --dtype %s is not f32 or bf16", dtype);
        return fail_kind(FAULT_USAGE);
    }
    if (experts && !recipe_choice("checkpoint.experts", experts, &layout)) {
        fail("convert: --experts %s is not released or transformers", experts);
        return fail_kind(FAULT_USAGE);
    }
    if (megabytes == 0) {
        fail("convert: --shard-mb 0 leaves no room for tensors");
        return fail_kind(FAULT_USAGE);
    }
    if (!folder_unused(a.at[1]))
        return fail_kind(FAULT_USAGE);
    o.retype = dtype != NULL;
    o.dtype = dtype_of_export((enum checkpoint_dtype)type);
    o.from = a.at[0];
    o.to = a.at[1];
    o.experts = experts_of((enum checkpoint_experts)layout);
    o.shard_bytes = megabytes * 1000000;
    if (!convert(&o))
        return false;
    say("wrote %s\n", o.to);
    return true;
}

const struct command command_convert = {
    "convert",
    "SRC DST [--dtype f32|bf16] [--experts released|transformers] [--like DIR] "
    "[--shard-mb N] [--force]",
    "a model folder or training state into a model folder",
    "Writes a Hugging Face folder from another one, or from a training state\n"
    "(runs/NAME/checkpoints/step-N), some megabytes at a time.  --dtype changes the "
    "type of\n"
    "the weights (else as in the model folder), --experts the layout of expert "
    "tensors: as\n"
    "published ([E,D,2F], [E,F,D]) or as transformers 5.24 saves them ([E,2F,D], "
    "[E,D,F]);\n"
    "else it stays as it is.  --like names the folder whose config "
    "and other\n"
    "files are taken, --shard-mb the largest weight file (5000).  DST must be new or "
    "empty.\n"
    "Weights that are not finite are refused unless --force is given.\n\n"
    "example: vlmoe convert runs/quickstart/model runs/quickstart/half --dtype bf16",
    run,
};
