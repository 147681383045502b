/* generate.c - vlmoe generate: a greedy answer of a model folder. */
#include "cli/cli.h"

#include "base/log.h"
#include "train/generate.h"

static bool answer(struct session *s, struct arena *a, const char *image,
                   const char *prompt, int64_t tokens)
{
    struct model_purpose best = purpose_generate(s->recipe);
    struct view_of_model *v = session_view(s, &best, &s->model.capacity);
    struct image_source source = {.path = image, .name = image};
    struct piece piece[] = {{.image = 0}, {.image = -1, .text = prompt}};
    struct message message = {.role = ROLE_USER, .npiece = image ? 2 : 1,
                              .piece = image ? piece : piece + 1};
    struct sample sample = {.name = image ? image : "prompt",
                            .nmessage = 1,
                            .message = &message,
                            .nimage = image ? 1 : 0,
                            .image = &source};
    struct answer out;
    if (!machine_use(s->machine, v->plan) ||
        !generate(s, v, a, &sample, 1, (int)tokens, &out))
        return false;
    puts(out.text);
    return true;
}

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct session *s = NEW(arena, struct session, 1);
    const char *image = NULL, *prompt = NULL;
    int64_t tokens = 128;
    const struct option option[] = {
        {"image", &image, NULL, NULL}, {"prompt", &prompt, NULL, NULL},
        {"tokens", NULL, &tokens, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1))
        return false;
    if (tokens < 1 || (!image && !prompt)) {
        fail(tokens < 1 ? "generate: --tokens 0 leaves no room for an answer"
                        : "generate: say what to answer to: --image FILE, --prompt "
                          "TEXT or both");
        return fail_kind(FAULT_USAGE);
    }
    recipe_default(arena, r);
    for (int i = 0; i < a.overrides; i++) {
        const char *equals = strchr(a.override[i], '=');
        if (!recipe_set(
                r, arena_copy(arena, a.override[i], (size_t)(equals - a.override[i])),
                equals + 1))
            return fail_kind(FAULT_USAGE);
    }
    r->model_path = a.at[0];
    r->model_weights = "load";
    log_set(LOG_WARN, 0);
    bool ok = session_open(s, r, false) && session_text(s) && session_machine(s) &&
              answer(s, arena, image, prompt ? prompt : "Describe the image.", tokens);
    session_close(s);
    return ok;
}

const struct command command_generate = {
    "generate",
    "MODEL [--image FILE] [--prompt TEXT] [--tokens N] [section.key=value ...]",
    "a model's greedy answer to an image and a prompt",
    "Prints the answer of a Hugging Face model folder.  Image limits come from the "
    "folder's\n"
    "preprocessor_config.json; data.* and batch.* may be overridden.  An image "
    "without a\nprompt is asked about with \"Describe the image.\"; an answer ends "
    "after --tokens (128)\nat the latest.\n\n"
    "example: vlmoe generate runs/quickstart/model --prompt 'What is this?' --image "
    "/usr/share/tuxpaint/stamps/animals/birds/duck.png",
    run,
};
