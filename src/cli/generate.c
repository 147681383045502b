/* generate.c - vlmoe generate: a greedy answer of a model folder. */
#include "cli/cli.h"

#include "base/log.h"
#include "train/data.h"
#include "train/generate.h"

/* What the user says: the images in their order where the prompt has "<image>", else
 * all of them before it.  Fails (usage) where marks and images are not as many. */
static bool message_make(struct arena *a, const char *const *image, int images,
                         const char *prompt, struct sample *out)
{
    static const char mark[] = "<image>";
    int marks = 0, n = 0, k = 0;
    for (const char *at = prompt; (at = strstr(at, mark)); at += strlen(mark))
        marks++;
    if (marks && marks != images) {
        fail("generate: the prompt has %d times %s, but --image gives %d image(s)",
             marks, mark, images);
        return fail_kind(FAULT_USAGE);
    }
    struct message *m = NEW(a, struct message, 1);
    *m = (struct message){.role = ROLE_USER,
                          .piece = NEW(a, struct piece, 2 * images + 1)};
    *out = (struct sample){.name = images ? image[0] : "prompt",
                           .nmessage = 1,
                           .message = m,
                           .nimage = images,
                           .image = NEW(a, struct image_source, images + 1)};
    for (int i = 0; i < images; i++)
        out->image[i] = (struct image_source){.path = image[i], .name = image[i]};
    while (!marks && k < images)
        m->piece[n++] = (struct piece){.image = k++};
    for (const char *end; *prompt; prompt = end) {
        end = strstr(prompt, mark);
        size_t size = end ? (size_t)(end - prompt) : strlen(prompt);
        if (size)
            m->piece[n++] = (struct piece){-1, arena_copy(a, prompt, size)};
        if (end)
            m->piece[n++] = (struct piece){.image = k++};
        end = prompt + size + (end ? strlen(mark) : 0);
    }
    m->npiece = n;
    return true;
}

/* Rows are as large as the prompt needs: batch.* limits them only where it is given,
 * and the session's own rows, of which none will run, need no room. */
static bool rows_limit(struct arena *arena, struct recipe *r, const struct arguments *a,
                       struct capacity *limit)
{
    enum { TOKENS = 1 << 22, PATCHES = 1 << 24, IMAGES = 1 << 16 };     /* recipe.def */
    r->batch_tokens = TOKENS;
    r->batch_patches = PATCHES;
    r->batch_images = IMAGES;
    for (int i = 0; i < a->overrides; i++) {
        const char *set = a->override[i], *equals = strchr(set, '=');
        if (!recipe_set(r, arena_copy(arena, set, (size_t)(equals - set)), equals + 1))
            return fail_kind(FAULT_USAGE);
    }
    *limit = (struct capacity){r->batch_tokens, r->batch_patches, 1, r->batch_images};
    r->batch_tokens = 16;
    r->batch_patches = r->batch_images = 1;
    return true;
}

static bool answer(struct session *s, struct arena *a, const struct capacity *limit,
                   const struct sample *sample, int64_t tokens)
{
    struct answer out;
    if (!generate(s, a, limit, sample, 1, (int)tokens, &out))
        return false;
    say("%s\n", out.text);
    return true;
}

static bool run(struct arena *arena, int argc, char **argv)
{
    struct arguments a = {.arena = arena};
    struct recipe *r = NEW(arena, struct recipe, 1);
    struct session *s = NEW(arena, struct session, 1);
    const char **image = NEW(arena, const char *, argc + 1), *prompt = NULL;
    int64_t tokens = 128, images = 0;
    struct sample sample;
    struct capacity limit;
    const struct option option[] = {{"image", image, &images, NULL},
                                    {"prompt", &prompt, NULL, NULL},
                                    {"tokens", NULL, &tokens, NULL}};
    if (!arguments_read(&a, argc, argv, option, COUNT(option), 1, 1))
        return false;
    enum { MOST = 1 << 20 };
    if (tokens < 1 || tokens > MOST || (!images && !prompt)) {
        fail(tokens < 1      ? "generate: --tokens 0 leaves no room for an answer"
             : tokens > MOST ? "generate: --tokens: an answer has at most 1048576"
                             : "generate: say what to answer to: --image FILE, "
                               "--prompt TEXT or both");
        return fail_kind(FAULT_USAGE);
    }
    prompt = prompt       ? prompt
             : images > 1 ? "Describe the images."
                          : "Describe the image.";
    if (!message_make(arena, image, (int)images, prompt, &sample))
        return false;
    recipe_default(arena, r);
    if (!rows_limit(arena, r, &a, &limit))
        return false;
    r->model_path = a.at[0];
    r->model_weights = model_weights_load;
    log_set(LOG_WARN, 0);
    bool ok = session_open(s, r, false) && session_text(s) && session_machine(s) &&
              answer(s, arena, &limit, &sample, tokens);
    session_close(s);
    return ok;
}

const struct command command_generate = {
    "generate",
    "MODEL [--image FILE]... [--prompt TEXT] [--tokens N] [section.key=value ...]",
    "a model's greedy answer to images and a prompt",
    "Prints the answer of a Hugging Face model folder.  Image limits come from the "
    "folder's\n"
    "processor file; data.* may be overridden, and batch.tokens, batch.patches and\n"
    "batch.images limit the prompt where they are given.  --image may be given "
    "several\n"
    "times: the images come in that order before the prompt, or where <image> stands "
    "in\n"
    "it.  Without a prompt it is \"Describe the image.\"; an answer ends after "
    "--tokens\n"
    "(128) at the latest.\n\n"
    "example: vlmoe generate runs/quickstart/model --prompt 'What is this?' --image "
    "/usr/share/tuxpaint/stamps/animals/birds/duck.png",
    run,
};
