/* source_message.c - one JSON object, or a caption, as a sample.  Apart from
 * source_json.c because tar members hold the same objects.
 *
 *   {"conversations": [{"from": "human", "value": "<image>\nWhat?"}, ...], "image": ""}
 *   {"messages": [{"role": "user", "content": "<image>What?"}, ...], "images": [""]}
 *   {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}, ...]}]}
 *
 * What cannot be honoured (videos, tool lists, sizes of single images) fails: nothing
 * that would change the training is left out in silence. */
#include "data/source_internal.h"

#include "base/text.h"

static const char mark[] = "<image>";
enum { MARK = sizeof mark - 1, QUOTED = 80 };

static const struct dialect dialect[] = {
    {"llava", true, true},
    {"qwen", true, true},
    {"sharegpt", true, false},
    {"openai", false, false},
};

const struct dialect *dialect_named(const char *format)
{
    for (int i = 0; i < COUNT(dialect); i++)
        if (!strcmp(dialect[i].format, format))
            return &dialect[i];
    return NULL;
}

const struct dialect *dialect_of(const json_t *object)
{
    const json_t *list = json_object_get(object, "messages");
    if (!list)
        return json_object_get(object, "conversations") ? dialect_named("llava") : NULL;
    size_t i;
    json_t *turn;
    json_array_foreach(list, i, turn)
        if (json_is_array(json_object_get(turn, "content")))
            return dialect_named("openai");
    bool images = json_object_get(object, "images") || json_object_get(object, "image");
    return images ? dialect_named("sharegpt") : NULL;
}

json_t *json_object_parse(struct bytes text)
{
    json_error_t error;
    json_t *object = json_loadb(text.at, (size_t)text.size, JSON_REJECT_DUPLICATES,
                                &error);
    if (!object) {
        fail("not valid JSON: %s at byte %d", error.text, error.position);
        return NULL;
    }
    if (json_is_object(object))
        return object;
    json_decref(object);
    fail("a sample must be a JSON object {...}");
    return NULL;
}

/* One sample on its way in. */
struct reading {
    struct arena *item;
    const struct dialect *dialect;
    const struct shelf *shelf;
    struct sample *out;
    const char *list;                   /* "messages" or "conversations" */
    const json_t *turns;
    int placed;                         /* images that have their place */
};

struct turn {                           /* one entry of the list, by either spelling */
    const char *role_key, *content_key;
    const json_t *role, *content;
};

static const char *const kind_name[] = {
    [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list", [JSON_STRING] = "a string",
    [JSON_INTEGER] = "a number", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
    [JSON_FALSE] = "false", [JSON_NULL] = "null",
};

static const char *kind_of(const json_t *j)
{
    return j ? kind_name[json_typeof(j)] : "missing";
}

static const char *string_copy(struct arena *item, const json_t *string)
{
    return arena_copy(item, json_string_value(string), json_string_length(string));
}

static bool turn_open(const struct reading *r, size_t i, struct turn *out)
{
    const json_t *object = json_array_get(r->turns, i);
    if (!json_is_object(object))
        return fail("%s[%zu]: is %s, expected an object", r->list, i, kind_of(object));
    bool role = json_object_get(object, "role");
    *out = (struct turn){.role_key = role ? "role" : "from",
                         .content_key = role ? "content" : "value"};
    out->role = json_object_get(object, out->role_key);
    out->content = json_object_get(object, out->content_key);
    if (!out->role)
        return fail("%s[%zu]: neither 'role' nor 'from' is given", r->list, i);
    if (!json_is_string(out->role))
        return fail("%s[%zu].%s: is %s, expected a string", r->list, i, out->role_key,
                    kind_of(out->role));
    bool parts = json_is_array(out->content);
    if (!json_is_string(out->content) && !parts)
        return fail("%s[%zu].%s: is %s, expected a string%s", r->list, i,
                    out->content_key, kind_of(out->content),
                    r->dialect->placeholders ? "" : " or a list of parts");
    if (parts && r->dialect->placeholders)
        return fail("%s[%zu].%s: is a list of parts, which format %s does not have; "
                    "that is format openai", r->list, i, out->content_key,
                    r->dialect->format);
    return true;
}

static bool role_of(const struct reading *r, size_t i, const struct turn *t,
                    enum role *out)
{
    static const struct { const char *name; enum role role; } role[] = {
        {"system", ROLE_SYSTEM}, {"user", ROLE_USER}, {"human", ROLE_USER},
        {"assistant", ROLE_ASSISTANT}, {"gpt", ROLE_ASSISTANT}, {"tool", ROLE_TOOL},
        {"observation", ROLE_TOOL},
    };
    const char *name = json_string_value(t->role);
    for (int k = 0; k < COUNT(role); k++)
        if (!strcmp(name, role[k].name)) {
            *out = role[k].role;
            return true;
        }
    return fail("%s[%zu].%s: unknown role '%.80s', expected system, user, human, "
                "assistant, gpt, tool or observation", r->list, i, t->role_key, name);
}

/* An assistant turn with "weight": 0 is context, not an answer to learn. */
static bool silence_of(const struct reading *r, size_t i, struct message *m)
{
    const json_t *weight = json_object_get(json_array_get(r->turns, i), "weight");
    if (!weight || json_is_null(weight))
        return true;
    json_int_t value = json_is_integer(weight) ? json_integer_value(weight) : -1;
    if (value != 0 && value != 1)
        return fail("%s[%zu].weight: is %s, expected 0 or 1", r->list, i,
                    kind_of(weight));
    m->silent = m->role == ROLE_ASSISTANT && value == 0;
    return true;
}

/* ---- text with placeholders ---- */

static int marks_in(const char *text)
{
    int count = 0;
    for (const char *at = strstr(text, mark); at; at = strstr(at + MARK, mark))
        count++;
    return count;
}

static void piece_add(struct message *m, int image, const char *text)
{
    m->piece[m->npiece++] = (struct piece){image, text};
}

static void text_piece(struct reading *r, struct message *m, const char *from,
                       const char *to)
{
    if (to > from)
        piece_add(m, -1, arena_copy(r->item, from, (size_t)(to - from)));
}

/* Cut at placeholders.  In llava one line break belongs to each: the one behind it, or,
 * where the text ends there, the one before. */
static void text_cut(struct reading *r, struct message *m, const char *text)
{
    m->piece = NEW(r->item, struct piece, 2 * marks_in(text) + 1);
    const char *from = text;
    for (const char *at = strstr(text, mark); at; at = strstr(from, mark)) {
        const char *behind = at + MARK;
        bool newline = r->dialect->newline;
        bool before = newline && *behind == '\0' && at > from && at[-1] == '\n';
        text_piece(r, m, from, before ? at - 1 : at);
        piece_add(m, r->placed++, NULL);
        from = newline && *behind == '\n' ? behind + 1 : behind;
    }
    text_piece(r, m, from, from + strlen(from));
}

/* For a message: whole characters, no line breaks. */
static const char *quote(struct arena *item, const char *text)
{
    size_t size = strnlen(text, QUOTED + 1);
    if (size > QUOTED)
        for (size = QUOTED; size > 0 && ((unsigned char)text[size] & 0xc0) == 0x80;)
            size--;
    char *out = arena_copy(item, text, size);
    for (char *c = out; *c; c++)
        *c = (unsigned char)*c < ' ' ? ' ' : *c;
    return out;
}

static bool marks_check(struct reading *r)
{
    int marks = 0;
    const char *shown = NULL;
    for (size_t i = 0; i < json_array_size(r->turns); i++) {
        struct turn t;
        if (!turn_open(r, i, &t))
            return false;
        const char *text = json_string_value(t.content);
        int here = marks_in(text);
        if (!shown || (here && !marks))
            shown = text;
        marks += here;
    }
    if (marks == r->out->nimage)
        return true;
    return fail("%d '%s' placeholders but %d images; text begins '%s'", marks, mark,
                r->out->nimage, quote(r->item, shown));
}

/* ---- images beside the text: "image" or "images", a path or a list of them ---- */

static const char *image_name(const struct reading *r, int image)
{
    return arena_text(r->item, "%s image %d", r->out->name, image);
}

static bool images_listed(struct reading *r, const json_t *object, const char *key)
{
    const json_t *given = json_object_get(object, key);
    int count = json_is_array(given) ? (int)json_array_size(given) : 1;
    r->out->image = NEW(r->item, struct image_source, count);
    for (int i = 0; i < count; i++) {
        bool list = json_is_array(given);
        const json_t *one = list ? json_array_get(given, (size_t)i) : given;
        if (!json_is_string(one))
            return fail("%s[%d]: is %s, expected a path", key, i, kind_of(one));
        if (!image_reference(r->item, string_copy(r->item, one),
                             json_string_length(one), r->shelf, image_name(r, i),
                             &r->out->image[i]))
            return fail_in("%s[%d]", key, i);
    }
    r->out->nimage = count;
    return true;
}

static bool key_filled(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) &&
           !(json_is_array(value) && json_array_size(value) == 0);
}

static bool images_beside(struct reading *r, const json_t *object)
{
    if (!r->shelf->folder) {            /* a tar key's members, in their order */
        r->out->nimage = r->shelf->count;
        r->out->image = NEW(r->item, struct image_source, r->shelf->count);
        for (int i = 0; i < r->shelf->count; i++)
            r->out->image[i] = r->shelf->member[i];
        return true;
    }
    bool one = key_filled(object, "image"), many = key_filled(object, "images");
    if (one && many)
        return fail("both 'image' and 'images' are given, expected one of them");
    if (!one && !many)
        return true;
    return images_listed(r, object, one ? "image" : "images");
}

/* ---- content as a list of parts ---- */

/* The key that holds a part's image: {"image": "x"}, {"image_url": "x"} or
 * {"image_url": {"url": "x"}}. */
static bool image_part(struct reading *r, const json_t *part, const char *type)
{
    static const char *const size_key[] = {"min_pixels", "max_pixels", "resized_width",
                                           "resized_height"};
    for (int i = 0; i < COUNT(size_key); i++)
        if (json_object_get(part, size_key[i]))
            return fail("%s: sizes of single images are not supported; set the limits "
                        "in the recipe", size_key[i]);
    const json_t *given = json_object_get(part, type);
    if (json_is_object(given))
        given = json_object_get(given, "url");
    int next = r->placed;
    if (!given && !strcmp(type, "image") && r->shelf->count > next) {
        r->out->image[r->placed++] = r->shelf->member[next];
        return true;
    }
    if (!json_is_string(given))
        return fail("%s: is %s, expected a path, a file:// or a data: URI", type,
                    kind_of(given));
    if (!image_reference(r->item, string_copy(r->item, given),
                         json_string_length(given), r->shelf, image_name(r, next),
                         &r->out->image[next]))
        return fail_in("%s", type);
    r->placed++;
    return true;
}

static bool part_read(struct reading *r, const json_t *part, struct message *m)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type)
        return fail("type: is %s, expected a string",
                    json_is_object(part) ? kind_of(json_object_get(part, "type"))
                                         : "missing");
    if (!strcmp(type, "image_url") || !strcmp(type, "image")) {
        piece_add(m, r->placed, NULL);
        return image_part(r, part, type);
    }
    if (strcmp(type, "text"))
        return fail("type: unknown part '%.80s', expected text, image_url or image",
                    type);
    const json_t *text = json_object_get(part, "text");
    if (!json_is_string(text))
        return fail("text: is %s, expected a string", kind_of(text));
    if (json_string_length(text))
        piece_add(m, -1, string_copy(r->item, text));
    return true;
}

static bool parts_read(struct reading *r, size_t i, const struct turn *t,
                       struct message *m)
{
    size_t count = json_array_size(t->content);
    m->piece = NEW(r->item, struct piece, count);
    for (size_t k = 0; k < count; k++)
        if (!part_read(r, json_array_get(t->content, k), m))
            return fail_in("%s[%zu].%s[%zu]", r->list, i, t->content_key, k);
    return true;
}

/* Room for every part that may be an image. */
static bool parts_room(struct reading *r)
{
    size_t room = 0;
    for (size_t i = 0; i < json_array_size(r->turns); i++) {
        struct turn t;
        if (!turn_open(r, i, &t))
            return false;
        room += json_is_array(t.content) ? json_array_size(t.content) : 0;
    }
    r->out->image = NEW(r->item, struct image_source, room);
    return true;
}

/* ---- the whole object ---- */

static bool turn_read(struct reading *r, size_t i, struct message *m)
{
    struct turn t;
    if (!turn_open(r, i, &t) || !role_of(r, i, &t, &m->role) || !silence_of(r, i, m))
        return false;
    if (json_is_array(t.content))
        return parts_read(r, i, &t, m);
    if (r->out->nimage) {
        text_cut(r, m, json_string_value(t.content));
        return true;
    }
    m->piece = NEW(r->item, struct piece, 1);
    if (json_string_length(t.content))
        piece_add(m, -1, string_copy(r->item, t.content));
    return true;
}

static bool list_find(struct reading *r, const json_t *object)
{
    const json_t *messages = json_object_get(object, "messages");
    const json_t *conversations = json_object_get(object, "conversations");
    if (messages && conversations)
        return fail("both 'messages' and 'conversations' are given, expected one");
    r->list = messages ? "messages" : "conversations";
    r->turns = messages ? messages : conversations;
    if (!r->turns)
        return fail("neither 'messages' nor 'conversations' is given");
    if (json_is_array(r->turns) && json_array_size(r->turns) > 0)
        return true;
    return fail("%s: is %s, expected a list of turns", r->list,
                json_is_array(r->turns) ? "empty" : kind_of(r->turns));
}

/* What would change the training and has no place in a sample. */
static bool unsupported_check(const json_t *object)
{
    static const char *const key[] = {"video", "videos", "audio", "audios", "objects"};
    for (int i = 0; i < COUNT(key); i++)
        if (key_filled(object, key[i]))
            return fail("%s: not supported, expected text and images only", key[i]);
    const json_t *tools = json_object_get(object, "tools");
    const char *text = json_string_value(tools);
    if (text ? strcmp(text, "") && strcmp(text, "[]") : key_filled(object, "tools"))
        return fail("tools: not supported; describe the tools in the system message");
    return true;
}

bool sample_from_json(struct arena *item, const json_t *object, const struct dialect *d,
                      const struct shelf *shelf, struct sample *out)
{
    struct reading r = {.item = item, .dialect = d, .shelf = shelf, .out = out};
    if (!list_find(&r, object) || !unsupported_check(object))
        return false;
    if (!d->placeholders && shelf->folder &&
        (key_filled(object, "image") || key_filled(object, "images")))
        return fail("images beside the messages are format sharegpt, not %s",
                    d->format);
    if (d->placeholders ? !images_beside(&r, object) : !parts_room(&r))
        return false;
    if (out->nimage && !marks_check(&r))
        return false;
    const json_t *system = json_object_get(object, "system");
    if (system && !json_is_null(system) && !json_is_string(system))
        return fail("system: is %s, expected a string", kind_of(system));
    size_t turns = json_array_size(r.turns);
    out->message = NEW(item, struct message, turns + 1);
    if (json_string_length(system)) {
        struct message *m = &out->message[out->nmessage++];
        *m = (struct message){.role = ROLE_SYSTEM, .piece = NEW(item, struct piece, 1)};
        piece_add(m, -1, string_copy(item, system));
    }
    for (size_t i = 0; i < turns; i++)
        if (!turn_read(&r, i, &out->message[out->nmessage++]))
            return false;
    out->nimage = r.placed;
    return true;
}

bool sample_from_caption(struct arena *item, const char *prompt, struct bytes caption,
                         struct sample *out)
{
    if (caption.size >= 3 && !memcmp(caption.at, "\xef\xbb\xbf", 3))
        caption = (struct bytes){caption.at + 3, caption.size - 3};
    for (; caption.size && is_blank(caption.at[0]); caption.at++)
        caption.size--;
    while (caption.size && is_blank(caption.at[caption.size - 1]))
        caption.size--;
    if (!caption.size)
        return fail("the caption is empty");
    if (!text_utf8(caption.at, caption.size) ||
        memchr(caption.at, '\0', (size_t)caption.size))
        return fail("the caption is not UTF-8 text");
    out->nmessage = 2;
    out->message = NEW(item, struct message, 2);
    struct message *user = &out->message[0], *answer = &out->message[1];
    *user = (struct message){.role = ROLE_USER,
                             .piece = NEW(item, struct piece, out->nimage + 1)};
    for (int i = 0; i < out->nimage; i++)
        piece_add(user, i, NULL);
    if (*prompt)
        piece_add(user, -1, arena_text(item, "%s", prompt));
    *answer = (struct message){.role = ROLE_ASSISTANT,
                               .piece = NEW(item, struct piece, 1)};
    piece_add(answer, -1, arena_copy(item, caption.at, (size_t)caption.size));
    return true;
}
