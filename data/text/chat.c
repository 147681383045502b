/* chat.c - the template, written piece by piece, each with its label. */
#include "data/text/chat.h"

#include "base/text.h"


bool chat_make(const struct tokenizer *t, struct chat *out)
{
    *out = (struct chat){.tokenizer = t, .special = SPECIAL_KEEP};
    const struct { const char *name; int *id; } marker[] = {
        {"<|im_start|>", &out->im_start},         {"<|im_end|>", &out->im_end},
        {"<|vision_start|>", &out->vision_start}, {"<|vision_end|>", &out->vision_end},
        {"<|image_pad|>", &out->image_pad},
    };
    for (int i = 0; i < COUNT(marker); i++) {
        *marker[i].id = tokenizer_id(t, marker[i].name);
        if (*marker[i].id < 0)
            fail("chat: the tokenizer has no token %s", marker[i].name);
        else if (!tokenizer_marker(t, *marker[i].id))
            fail("chat: the tokenizer's %s must be special, without lstrip, rstrip and "
                 "normalized; else text could be taken for it", marker[i].name);
        else
            continue;
        return fail_kind(FAULT_DATA);
    }
    return true;
}

/* What has been written: ids and labels, and the text since the last marker, which is
 * tokenized only when the next marker ends it, as in the conversation written out. */
struct writer {
    const struct chat *chat;
    struct arena *a;
    struct ids ids;
    bool *scored;
    int64_t labels, room;               /* scored[0..labels) are set */
    struct text text;
    int images;                         /* placed so far */
    int64_t special;                    /* that the text had */
};

/* Labels of the ids since the last call: unscored up to byte `header` of their text. */
static void label(struct writer *w, bool scored, int64_t header)
{
    for (int64_t end = 0; w->labels < w->ids.count;) {
        GROW(w->a, w->scored, w->labels, w->room);
        end += tokenizer_bytes(w->chat->tokenizer, w->ids.at[w->labels]);
        w->scored[w->labels++] = scored && end > header;
    }
}

/* Tokenize the waiting text; its first `header` bytes are never scored. */
static bool end_text(struct writer *w, bool scored, int64_t header)
{
    if (w->text.size == 0)
        return true;
    int64_t at = w->ids.count;
    if (!tokenizer_encode(w->chat->tokenizer, w->a, w->text.at, w->text.size,
                          w->chat->special, &w->ids))
        return false;
    for (; at < w->ids.count; at++)
        w->special += tokenizer_harmless(w->chat->tokenizer, w->ids.at[at]);
    label(w, scored, header);
    w->text.size = 0;
    return true;
}

static void put_marker(struct writer *w, int id, bool scored)
{
    ids_add(w->a, &w->ids, id);
    label(w, scored, 0);
}

static bool put_image(struct writer *w, const struct sample *s, const struct message *m,
                      int image, const int *image_tokens)
{
    if (m->role != ROLE_USER && m->role != ROLE_TOOL)
        return fail("an image in %s message has no place in the template",
                    m->role == ROLE_SYSTEM ? "a system" : "an assistant");
    if (image != w->images || image >= s->nimage)
        return fail("image %d comes where image %d was expected (%d image(s) given)",
                    image + 1, w->images + 1, s->nimage);
    if (image_tokens[image] < 1)
        return fail("image %d has %d token(s)", image + 1, image_tokens[image]);
    w->images++;
    if (!end_text(w, false, 0))
        return false;
    put_marker(w, w->chat->vision_start, false);
    for (int i = 0; i < image_tokens[image]; i++)
        put_marker(w, w->chat->image_pad, false);
    put_marker(w, w->chat->vision_end, false);
    return true;
}

static bool put_pieces(struct writer *w, const struct sample *s,
                       const struct message *m, const int *image_tokens)
{
    for (int i = 0; i < m->npiece; i++) {
        const struct piece *p = &m->piece[i];
        if (p->image < 0)
            text_add_bytes(&w->text, p->text, (int64_t)strlen(p->text));
        else if (!put_image(w, s, m, p->image, image_tokens))
            return false;
    }
    return true;
}

static bool put_message(struct writer *w, const struct sample *s, int index,
                        const int *image_tokens)
{
    static const char *const header[ROLES] = {
        [ROLE_SYSTEM] = "system\n", [ROLE_USER] = "user\n",
        [ROLE_ASSISTANT] = "assistant\n", [ROLE_TOOL] = "user",
    };
    const struct message *m = &s->message[index];
    bool tool = m->role == ROLE_TOOL;
    bool joins = tool && index > 0 && m[-1].role == ROLE_TOOL;
    bool joined = tool && index + 1 < s->nmessage && m[1].role == ROLE_TOOL;
    bool scored = m->role == ROLE_ASSISTANT && !m->silent;
    if (m->role == ROLE_SYSTEM && index > 0)
        return fail("message %d is a system message, which must be the first",
                    index + 1);
    if (!joins) {
        if (!end_text(w, false, 0))
            return false;
        put_marker(w, w->chat->im_start, false);
        text_add(&w->text, "%s", header[m->role]);
    }
    if (tool)
        text_add(&w->text, "\n<tool_response>\n");
    if (!put_pieces(w, s, m, image_tokens))
        return false;
    if (tool)
        text_add(&w->text, "\n</tool_response>");
    if (joined)
        return true;
    if (!end_text(w, scored, (int64_t)strlen(header[m->role])))
        return false;
    put_marker(w, w->chat->im_end, scored);
    text_add(&w->text, "\n");
    return true;
}

static bool put_sample(struct writer *w, const struct sample *s,
                       const int *image_tokens, bool prompt)
{
    int count = s->nmessage;
    if (prompt && count > 0 && s->message[count - 1].role == ROLE_ASSISTANT)
        count--;
    if (s->nmessage == 0)
        return fail("there are no messages");
    for (int i = 0; i < count; i++)
        if (!put_message(w, s, i, image_tokens))
            return false;
    if (w->images != s->nimage)
        return fail("%d image(s) given, but %d have a place in the messages", s->nimage,
                    w->images);
    if (prompt) {
        if (!end_text(w, false, 0))
            return false;
        put_marker(w, w->chat->im_start, false);
        text_add(&w->text, "assistant\n");
    }
    return end_text(w, false, 0);
}

bool chat_encode(const struct chat *c, struct arena *a, const struct sample *s,
                 const int *image_tokens, bool prompt, struct dialogue *out)
{
    struct writer w = {.chat = c, .a = a, .text = text_make(a)};
    if (!put_sample(&w, s, image_tokens, prompt)) {
        fail_in("chat");
        return fail_kind(FAULT_DATA);
    }
    *out = (struct dialogue){w.ids, w.scored, w.special};
    return true;
}
