/* convert.c - reads weights where they are and streams them into a model folder. */
#include "tools/convert.h"

#include "checkpoint/state.h"
#include "train/model.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

struct origin {                         /* one of the two */
    struct hf_folder folder;
    struct state state;
    const struct graph *graph;
};

static bool folder_get(void *arg, int64_t param, struct stretch part, float *to)
{
    const struct origin *o = arg;
    return hf_load(&o->folder, &o->graph->param[param], part, to);
}

static bool state_get(void *arg, int64_t param, struct stretch part, float *to)
{
    const struct origin *o = arg;
    const struct param *p = &o->graph->param[param];
    const struct state_piece want = {p->name, DTYPE_F32, p->box, part, NULL};
    return state_read(&o->state, &want, to);
}

/* ROOT/step-N taken apart; false: it is no such path. */
static bool step_of(struct arena *a, const char *path, const char **root, int64_t *step)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    char *copy = arena_copy(a, path, n), *slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy;
    char *end;
    if (strncmp(name, "step-", 5))
        return false;
    *step = strtoll(name + 5, &end, 10);
    *root = slash ? arena_copy(a, copy, (size_t)(slash - copy)) : ".";
    return end != name + 5 && !*end;
}

/* The model folder a state's run was started from, as its manifest says. */
static const char *state_model(const struct state *s, struct arena *a)
{
    json_t *meta = json_loads(s->manifest.meta, 0, NULL);
    const char *text = json_string_value(json_object_get(meta, "model"));
    const char *copy = text ? arena_copy(a, text, strlen(text)) : NULL;
    json_decref(meta);
    return copy;
}

/* `folder`: of weights; NULL: they are a state's. */
static bool save(struct arena *a, const struct convert_options *o, const char *like,
                 const char *folder, struct origin *from)
{
    struct model_config config;
    struct model model;
    struct model_purpose purpose = purpose_logits();
    if (!hf_config_read(a, like, &config))
        return false;
    const struct capacity least = {
        .tokens = 1, .patches = (int64_t)config.vision.merge * config.vision.merge,
        .segments = 1, .images = 1};
    model_record(a, &config, &least, &purpose, NULL, 0, &model);
    from->graph = &model.graph;
    const struct param *param = model.graph.param;
    int64_t count = model.graph.nparam;
    if (folder && !(hf_open(a, folder, param, count, &from->folder) &&
                    hf_check(&from->folder, param, count)))
        return false;
    struct stretch *part = NEW(a, struct stretch, count);
    for (int64_t i = 0; i < count; i++)
        part[i] = (struct stretch){0, param[i].count};
    bool as_found = folder && !o->experts && !hf_has_weights(like);
    const struct hf_weights weights = {
        .get = folder ? folder_get : state_get,
        .arg = from,
        .param = param,
        .part = part,
        .count = count,
        .retype = o->retype,
        .force = o->force,
        .origin = folder ? &from->folder : NULL,
        .experts = as_found ? from->folder.experts : o->experts,
    };
    const int alone = 0;
    const struct comm self = comm_self("convert", &alone);
    return hf_save(&self, o->to, like, &weights, o->dtype, o->shard_bytes);
}

/* What else may have been meant by a folder that is no state by its name. */
static bool source_check(struct arena *a, const char *path)
{
    if (!folder_exists(path))
        return fail("convert: there is no folder %s", path);
    if (file_exists(path_join(a, path, "manifest.json")))
        return fail("convert: %s holds a training state under another name; states are "
                    "read as ROOT/step-N", path);
    if (!hf_has_weights(path))
        return fail("convert: %s is neither a model folder (model.safetensors) nor a "
                    "training state (.../checkpoints/step-N)", path);
    return true;
}

bool convert(const struct convert_options *o)
{
    struct arena a = arena_make("convert");
    struct origin from = {0};
    const char *root, *like = o->like;
    int64_t step;
    bool ok, is_state = step_of(&a, o->from, &root, &step) && folder_exists(o->from);
    if (is_state) {
        ok = state_open(&a, root, step, &from.state);
        if (ok && !like)
            like = state_model(&from.state, &a);
        if (ok && !like)
            ok = fail(
                "convert: %s does not say which model it trains; name it with --like",
                o->from);
        ok = ok && hf_look(like, true) && save(&a, o, like, NULL, &from);
    } else {
        ok = hf_look(like ? like : o->from, true) && source_check(&a, o->from) &&
             save(&a, o, like ? like : o->from, o->from, &from);
        hf_close(&from.folder);
    }
    arena_free(&a);
    return ok || fail_kind(FAULT_CHECKPOINT);
}
