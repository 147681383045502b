/* record.c - records that hold no turns: an instruction with its output, and
 * captions.  Both become what message.c makes of a conversation. */
#include "data/source/parts.h"

#include "base/text.h"

/* ---- Alpaca: "instruction", "input", "output", "history": [["", ""], ...] ---- */

static bool turn_add(json_t *turns, const char *role, const json_t *text,
                     const char *what)
{
    if (!json_is_string(text))
        return fail("%s: expected a string", what);
    return json_array_append_new(turns, json_pack("{s:s, s:O}", "role", role, "content",
                                                  (json_t *)text)) == 0 ||
           fail("%s: not enough memory", what);
}

static bool history_add(json_t *turns, const json_t *history)
{
    size_t i;
    json_t *pair;
    if (value_filled(history) && !json_is_array(history))
        return fail("history: expected a list of pairs");
    json_array_foreach(history, i, pair)
        if (json_array_size(pair) != 2 ||
            !turn_add(turns, "user", json_array_get(pair, 0), "history") ||
            !turn_add(turns, "assistant", json_array_get(pair, 1), "history"))
            return fail("history[%zu]: expected a pair of strings", i);
    return true;
}

/* The question is the instruction, and on the next line the input if there is any. */
static bool question_add(struct arena *item, json_t *turns, const json_t *object)
{
    const json_t *instruction = json_object_get(object, "instruction");
    const json_t *input = json_object_get(object, "input");
    if (!value_filled(input))
        return turn_add(turns, "user", instruction, "instruction");
    if (!json_is_string(instruction) || !json_is_string(input))
        return fail("instruction, input: expected strings");
    json_t *both = json_string(arena_text(item, "%s\n%s",
                                          json_string_value(instruction),
                                          json_string_value(input)));
    bool ok = turn_add(turns, "user", both, "instruction");
    json_decref(both);
    return ok;
}

json_t *record_from_alpaca(struct arena *item, const json_t *object)
{
    static const char *const own[] = {"instruction", "input", "output", "history"};
    if (key_filled(object, "messages")) {
        fail("both 'messages' and 'output' are given, expected one of them");
        return NULL;
    }
    json_t *turns = json_array();
    if (!history_add(turns, json_object_get(object, "history")) ||
        !question_add(item, turns, object) ||
        !turn_add(turns, "assistant", json_object_get(object, "output"), "output")) {
        json_decref(turns);
        return NULL;
    }
    json_t *record = json_copy((json_t *)object);
    for (int i = 0; i < COUNT(own); i++)
        json_object_del(record, own[i]);
    json_object_set_new(record, "messages", turns);
    return record;
}

/* ---- captions ---- */

static struct bytes trimmed(struct bytes text)
{
    if (text.size >= 3 && !memcmp(text.at, "\xef\xbb\xbf", 3))
        text = (struct bytes){text.at + 3, text.size - 3};
    for (; text.size && is_blank(text.at[0]); text.at++)
        text.size--;
    while (text.size && is_blank(text.at[text.size - 1]))
        text.size--;
    return text;
}

bool caption_of(const json_t *object, struct bytes *out)
{
    static const char *const key[] = {"caption", "text"};
    const char *had = NULL;
    for (int i = 0; i < COUNT(key); i++) {
        const json_t *value = json_object_get(object, key[i]);
        if (!value_filled(value))
            continue;
        if (!json_is_string(value))
            return fail("%s: expected a string", key[i]);
        struct bytes text = trimmed((struct bytes){(char *)json_string_value(value),
                                                   (int64_t)json_string_length(value)});
        if (out->at && !(text.size == trimmed(*out).size &&
                         !memcmp(text.at, trimmed(*out).at, (size_t)text.size)))
            return fail("'%s' is another text than %s%s%s; name the one not to read in "
                        "data.sources.N.ignore", key[i], had ? "'" : "the .txt member",
                        had ? had : "", had ? "'" : "");
        *out = text;
        had = key[i];
    }
    return true;
}

bool sample_from_file_name(struct arena *item, const char *prompt, const json_t *object,
                           const struct shelf *shelf, struct sample *out)
{
    static const char *const used[] = {"file_name", "caption", "text", NULL};
    const json_t *name = json_object_get(object, "file_name");
    struct bytes text = {0};
    if (!keys_check(object, LEVEL_RECORD, used) || !caption_of(object, &text))
        return false;
    if (!json_is_string(name))
        return fail("file_name: expected an image's path");
    if (!text.at)
        return fail("neither 'text' nor 'caption' is given");
    out->nimage = 1;
    out->image = NEW(item, struct image_source, 1);
    const char *path = arena_copy(item, json_string_value(name),
                                  json_string_length(name));
    return (image_reference(item, path, json_string_length(name), shelf, path,
                            &out->image[0]) || fail_in("file_name")) &&
           sample_from_caption(item, prompt, text, out);
}

static void piece_set(struct arena *item, struct message *m, enum role role, int pieces)
{
    *m = (struct message){.role = role, .piece = NEW(item, struct piece, pieces)};
}

bool sample_from_caption(struct arena *item, const char *prompt, struct bytes caption,
                         struct sample *out)
{
    caption = trimmed(caption);
    if (!caption.size)
        return fail("the caption is empty");
    if (!text_utf8(caption.at, caption.size) ||
        memchr(caption.at, '\0', (size_t)caption.size))
        return fail("the caption is not UTF-8 text");
    out->nmessage = 2;
    out->message = NEW(item, struct message, 2);
    struct message *user = &out->message[0], *answer = &out->message[1];
    piece_set(item, user, ROLE_USER, out->nimage + 1);
    for (int i = 0; i < out->nimage; i++)
        user->piece[user->npiece++] = (struct piece){i, NULL};
    if (*prompt)
        user->piece[user->npiece++] =
            (struct piece){-1, arena_text(item, "%s", prompt)};
    piece_set(item, answer, ROLE_ASSISTANT, 1);
    answer->piece[answer->npiece++] =
        (struct piece){-1, arena_copy(item, caption.at, (size_t)caption.size)};
    return true;
}
