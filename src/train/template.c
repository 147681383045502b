/* template.c - a folder's template is found and compared by its marks. */
#include "train/template.h"

#include "base/log.h"
#include "checkpoint/hf_json.h"


/* The text under chat_template of a JSON file; NULL: it has none.  A list holds several
 * by name. */
static const char *json_template(struct arena *a, const char *path)
{
    struct bytes text;
    json_t *all, *item;
    size_t i;
    const char *out = NULL;
    if (!file_read(a, path, CONFIG_MOST, &text) ||
        !json_read(path, text.at, text.size, &all)) {
        log_warn("chat", "%s", fail_message());
        fail_clear();
        return NULL;
    }
    json_t *value = json_object_get(all, "chat_template");
    json_array_foreach(value, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && !strcmp(name, "default"))
            out = json_string_value(json_object_get(item, "template"));
    }
    if (json_is_string(value))
        out = json_string_value(value);
    if (out)
        out = arena_copy(a, out, strlen(out));
    json_decref(all);
    return out;
}

/* In the order in which transformers looks; `path` is where it was found. */
static bool folder_template(struct arena *a, const char *folder, const char **text,
                            const char **path)
{
    static const char *const json[] = {"chat_template.json", "tokenizer_config.json"};
    struct bytes jinja;
    *text = NULL;
    *path = path_join(a, folder, "chat_template.jinja");
    if (file_exists(*path)) {
        if (!file_read(a, *path, CONFIG_MOST, &jinja))
            return false;
        *text = jinja.at;
    }
    for (int i = 0; i < COUNT(json) && !*text; i++) {
        *path = path_join(a, folder, json[i]);
        if (file_exists(*path))
            *text = json_template(a, *path);
    }
    return true;
}

/* What tells it from ours; NULL: nothing does. */
static const char *other_mark(struct arena *a, const char *text)
{
    static const char *const has[] = {"<|im_start|>", "<|im_end|>", "<|image_pad|>"};
    static const char *const lacks[] = {"<think>", "You are a helpful assistant"};
    for (int i = 0; i < COUNT(has); i++)
        if (!strstr(text, has[i]))
            return arena_text(a, "it has no %s", has[i]);
    for (int i = 0; i < COUNT(lacks); i++)
        if (strstr(text, lacks[i]))
            return arena_text(a, "it writes \"%s\"", lacks[i]);
    return NULL;
}

bool template_check(struct arena *a, const char *folder, enum template_choice choice)
{
    const char *text, *path, *mark;
    if (choice == TEMPLATE_OURS)
        return true;
    if (!folder_template(a, folder, &text, &path))
        return fail_kind(FAULT_CHECKPOINT);
    mark = text ? other_mark(a, text) : NULL;
    if (mark && choice == TEMPLATE_FOLDER) {
        fail("recipe: model.template folder: the chat template of %s is not Qwen3-VL's "
             "(%s), which alone is written here; expected qwen3-vl", path, mark);
        return fail_kind(FAULT_USAGE);
    }
    if (mark)
        log_warn("chat", "the chat template of %s is not Qwen3-VL's (%s); "
                 "conversations are written in Qwen3-VL's all the same "
                 "(model.template=qwen3-vl says that is meant)", path, mark);
    return true;
}
