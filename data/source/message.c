/* message.c - one JSON object of turns as a sample.  Apart from json.c
 * because tar members hold the same objects.
 *
 *   {"conversations": [{"from": "human", "value": "<image>\nWhat?"}, ...], "image": ""}
 *   {"messages": [{"role": "user", "content": "<image>What?"}, ...], "images": [""]}
 *   {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}, ...]}]}
 *
 * What cannot be honoured (videos, sizes of single images, keys that nobody knows)
 * fails: nothing that would change the training is left out in silence. */
#include "data/source/parts.h"

#include "base/json_text.h"
#include "base/text.h"

static const char mark[] = "<image>";
static const char odd_number[] = "\x7f";         /* DEL: begins no text that is read */
enum { MARK = sizeof mark - 1, QUOTED = 80 };

static const struct dialect dialect[] = {
    {"llava", true, true, DIALECT_TURNS},    {"qwen", true, true, DIALECT_TURNS},
    {"sharegpt", true, false, DIALECT_TURNS}, {"openai", false, false, DIALECT_TURNS},
    {"alpaca", true, false, DIALECT_ALPACA},
    {"imagefolder", false, false, DIALECT_CAPTIONS},
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
    if (!value_filled(list))
        list = NULL;
    if (json_object_get(object, "instruction") && json_object_get(object, "output") &&
        !list)
        return dialect_named("alpaca");
    if (json_object_get(object, "file_name") && !list)
        return dialect_named("imagefolder");
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

/* Python writes NaN and integers of any size, jansson takes the whole record for bad.
 * Under a key that is not read they are none of our business. */
static json_t *odd_parse(struct bytes text, json_error_t *error)
{
    struct arena a = arena_make("record");
    text = json_tamed(&a, text, odd_number);
    json_t *value = json_loadb(text.at, (size_t)text.size, JSON_REJECT_DUPLICATES,
                               error);
    arena_free(&a);
    return value;
}

json_t *json_object_parse(const struct source *s, struct bytes text, bool turns)
{
    json_error_t error;
    json_t *value = json_loadb(text.at, (size_t)text.size, JSON_REJECT_DUPLICATES,
                               &error);
    bool odd = !value;
    if (odd && !(value = odd_parse(text, &error))) {
        fail("not valid JSON: %s at byte %d", error.text, error.position);
        return NULL;
    }
    if (json_is_array(value) && turns)
        value = json_pack("{s:o}", "messages", value);
    if (value && s->ignore)
        keys_ignore(value, s->ignore);
    bool ok = json_is_object(value) || fail("a sample must be a JSON object {...}");
    if (ok && (!odd || keys_unmarked(value, LEVEL_RECORD, odd_number)))
        return value;
    json_decref(value);
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
    struct image_source *column;        /* [columns] images beside the turns, */
    bool *used;                         /* that a part has taken */
    int columns, next;
};

struct turn {                           /* one entry of the list, by either spelling */
    const char *role_key, *content_key;
    const json_t *role, *content;
    const char *text;                   /* of a string; "" where only calls are made */
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
    if (key_filled(object, "function_call"))
        return fail("%s[%zu].function_call: not supported, expected tool_calls",
                    r->list, i);
    bool parts = json_is_array(out->content);
    out->text = json_is_string(out->content) ? json_string_value(out->content) : "";
    if (!value_filled(out->content) && key_filled(object, "tool_calls"))
        return true;                    /* nothing is said beside the calls */
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

/* Is the turn to be trained on?  Spelt "weight" (OpenAI), "loss" (ms-swift) or "train"
 * (Axolotl).  An assistant turn that is not is context, not an answer to learn. */
static bool silence_of(const struct reading *r, size_t i, struct message *m)
{
    static const char *const key[] = {"weight", "loss", "train"};
    const json_t *turn = json_array_get(r->turns, i);
    int said = -1;
    for (int k = 0; k < COUNT(key); k++) {
        const json_t *given = json_object_get(turn, key[k]);
        if (!given || json_is_null(given))
            continue;
        double number = json_is_boolean(given) ? json_is_true(given)
                        : json_is_number(given) ? json_number_value(given) : -1;
        if (number != 0 && number != 1)
            return fail("%s[%zu].%s: is %s, expected 0 or 1, true or false", r->list, i,
                        key[k], kind_of(given));
        if (said >= 0 && said != (int)number)
            return fail("%s[%zu].%s: says the opposite of the key before it", r->list,
                        i, key[k]);
        said = (int)number;
        if (said && m->role != ROLE_ASSISTANT)
            return fail("%s[%zu].%s: asks to train on a turn that is not the "
                        "assistant's", r->list, i, key[k]);
    }
    m->silent = m->role == ROLE_ASSISTANT && said == 0;
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
        int here = marks_in(t.text);
        if (!shown || (here && !marks))
            shown = t.text;
        marks += here;
    }
    if (marks == r->out->nimage)
        return true;
    return fail("%d '%s' placeholders but %d image(s); text begins '%s'", marks, mark,
                r->out->nimage, quote(r->item, shown));
}

/* ---- images: "image" or "images" beside the turns, or in a part ---- */

static const char *image_name(const struct reading *r, int image)
{
    return arena_text(r->item, "%s image %d", r->out->name, image);
}

/* A path or URI, or an object that holds one as "path" or "url". */
static bool image_given(struct reading *r, const json_t *given, int image,
                        struct image_source *out)
{
    static const char *const used[] = {"path", "url", NULL};
    if (json_is_object(given)) {
        bool path = key_filled(given, "path");
        if (!keys_check(given, LEVEL_PART, used))
            return false;
        if (path && key_filled(given, "url"))
            return fail("both 'path' and 'url' are given, expected one of them");
        given = json_object_get(given, path ? "path" : "url");
    }
    if (!json_is_string(given))
        return fail("is %s, expected a path, a file:// or a data: URI", kind_of(given));
    return image_reference(r->item, string_copy(r->item, given),
                           json_string_length(given), r->shelf, image_name(r, image),
                           out);
}

static bool images_listed(struct reading *r, const json_t *object, const char *key)
{
    const json_t *given = json_object_get(object, key);
    bool list = json_is_array(given);
    r->columns = list ? (int)json_array_size(given) : 1;
    r->column = NEW(r->item, struct image_source, r->columns);
    for (int i = 0; i < r->columns; i++)
        if (!image_given(r, list ? json_array_get(given, (size_t)i) : given, i,
                         &r->column[i]))
            return fail_in("%s[%d]", key, i);
    return true;
}

/* A tar key has its members, in their order; names of them are only counted. */
static bool images_beside(struct reading *r, const json_t *object)
{
    bool one = key_filled(object, "image"), many = key_filled(object, "images");
    if (one && many)
        return fail("both 'image' and 'images' are given, expected one of them");
    const char *key = one ? "image" : "images";
    if (r->shelf->folder)
        return (!one && !many) || images_listed(r, object, key);
    const json_t *given = json_object_get(object, key);
    int named = json_is_array(given) ? (int)json_array_size(given) : one || many;
    r->columns = r->shelf->count;
    r->column = NEW(r->item, struct image_source, r->columns);
    for (int i = 0; i < r->columns; i++)
        r->column[i] = r->shelf->member[i];
    return !named || named == r->columns ||
           fail("%s: names %d image(s), but the key has %d", key, named, r->columns);
}

/* Parts without a path take the images beside the turns, one after another. */
static bool column_take(struct reading *r, struct image_source *out)
{
    while (r->next < r->columns && r->used[r->next])
        r->next++;
    if (r->next == r->columns)
        return fail("no path, and no image beside the turns is left for it");
    r->used[r->next] = true;
    *out = r->column[r->next];
    return true;
}

static bool column_spent(const struct reading *r)
{
    for (int i = 0; i < r->columns; i++)
        if (!r->used[i])
            return fail("%d image(s) beside the turns, but image %d has no "
                        "part {\"type\": \"image\"}%s", r->columns, i + 1,
                        r->placed ? "" : "; where '<image>' marks their places, that "
                                         "is format sharegpt");
    return true;
}

/* ---- content as a list of parts ---- */

/* {"image": "x"}, {"image_url": "x"}, {"image_url": {"url": "x"}}, {"url": "x"}, ... */
static bool image_part(struct reading *r, const json_t *part, const char *type)
{
    static const char *const size_key[] = {"min_pixels", "max_pixels", "resized_width",
                                           "resized_height"};
    const char *const used[] = {"type", type, "url", "path", NULL};
    const char *key = NULL;
    for (int i = 0; i < COUNT(size_key); i++)
        if (key_filled(part, size_key[i]))
            return fail("%s: sizes of single images are not supported; set the limits "
                        "in the recipe", size_key[i]);
    if (!keys_check(part, LEVEL_PART, used))
        return false;
    for (int i = 1; used[i]; i++) {
        if (key && key_filled(part, used[i]))
            return fail("both '%s' and '%s' are given, expected one of them", key,
                        used[i]);
        key = key_filled(part, used[i]) ? used[i] : key;
    }
    struct image_source *image = &r->out->image[r->placed];
    if (!key ? !column_take(r, image)
             : !image_given(r, json_object_get(part, key), r->placed, image))
        return fail_in("%s", key ? key : type);
    for (int i = 0; key && !r->shelf->folder && i < r->columns; i++)
        r->used[i] |= r->column[i].name == image->name;
    r->placed++;
    return true;
}

static bool part_read(struct reading *r, const json_t *part, struct message *m)
{
    static const char *const used[] = {"type", "text", NULL};
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
    if (!keys_check(part, LEVEL_PART, used))
        return false;
    if (json_string_length(text))
        piece_add(m, -1, string_copy(r->item, text));
    return true;
}

static bool parts_read(struct reading *r, size_t i, const struct turn *t,
                       struct message *m)
{
    size_t count = json_array_size(t->content);
    m->piece = NEW(r->item, struct piece, count + 1);
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
    r->used = NEW(r->item, bool, r->columns);
    return true;
}

/* ---- the whole object ---- */

static bool content_read(struct reading *r, size_t i, const struct turn *t,
                         struct message *m)
{
    if (json_is_array(t->content))
        return parts_read(r, i, t, m);
    if (r->dialect->placeholders && r->columns) {
        text_cut(r, m, t->text);
        return true;
    }
    m->piece = NEW(r->item, struct piece, 2);
    text_piece(r, m, t->text, t->text + strlen(t->text));
    return true;
}

/* Written behind what is said, as the template does. */
static bool calls_read(struct reading *r, size_t i, struct message *m)
{
    const json_t *turn = json_array_get(r->turns, i);
    const char *text;
    if (!key_filled(turn, "tool_calls"))
        return true;
    if (m->role != ROLE_ASSISTANT)
        return fail("%s[%zu].tool_calls: in a turn that is not the assistant's",
                    r->list, i);
    if (!tool_calls_text(r->item, json_object_get(turn, "tool_calls"), m->npiece > 0,
                         &text))
        return fail_in("%s[%zu].tool_calls", r->list, i);
    piece_add(m, -1, text);
    return true;
}

static bool turn_read(struct reading *r, size_t i, struct message *m)
{
    struct turn t;
    if (!turn_open(r, i, &t))
        return false;
    const char *const used[] = {t.role_key, t.content_key, "weight", "loss", "train",
                                "tool_calls", NULL};
    return role_of(r, i, &t, &m->role) && silence_of(r, i, m) &&
           (keys_check(json_array_get(r->turns, i), LEVEL_TURN, used) ||
            fail_in("%s[%zu]", r->list, i)) &&
           content_read(r, i, &t, m) && calls_read(r, i, m);
}

static bool list_find(struct reading *r, const json_t *object)
{
    const json_t *messages = json_object_get(object, "messages");
    const json_t *conversations = json_object_get(object, "conversations");
    if (value_filled(messages) && value_filled(conversations))
        return fail("both 'messages' and 'conversations' are given, expected one");
    bool first = value_filled(messages) || !conversations;
    r->list = first ? "messages" : "conversations";
    r->turns = first ? messages : conversations;
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
    return true;
}

/* A placeholder without an image: an image is missing, and without it the text would
 * teach to talk about what is not there. */
static bool images_missing(struct reading *r)
{
    for (int i = 0; i < r->out->nmessage; i++)
        for (int k = 0; k < r->out->message[i].npiece; k++) {
            const char *text = r->out->message[i].piece[k].text;
            if (text && marks_in(text))
                return fail("'%s' stands in the text, but no image is given; text "
                            "begins '%s'", mark, quote(r->item, text));
        }
    return true;
}

/* The same fault with marks of what no sample can have.  An image's pad is text beside
 * images that have their places. */
bool marks_known(struct arena *item, const struct sample *sample)
{
    static const char *const other[] = {"<|image_pad|>", "<video>", "<audio>",
                                        "<|video_pad|>", "<|audio_pad|>"};
    for (int i = 0; i < sample->nmessage; i++)
        for (int k = 0; k < sample->message[i].npiece; k++) {
            const char *text = sample->message[i].piece[k].text;
            for (int n = sample->nimage > 0; text && n < COUNT(other); n++)
                if (strstr(text, other[n]))
                    return fail("'%s' stands in the text, but marks nothing that is "
                                "given; text begins '%s'", other[n], quote(item, text));
        }
    return true;
}

static bool system_read(struct reading *r, const json_t *object)
{
    const json_t *system = json_object_get(object, "system");
    if (system && !json_is_null(system) && !json_is_string(system))
        return fail("system: is %s, expected a string", kind_of(system));
    if (json_string_length(system)) {
        struct message *m = &r->out->message[r->out->nmessage++];
        m->role = ROLE_SYSTEM;
        m->piece = NEW(r->item, struct piece, 1);
        piece_add(m, -1, string_copy(r->item, system));
    }
    return true;
}

/* "tools", a list or its text, are told behind a system message, or instead of one. */
static bool tools_read(struct reading *r, const json_t *object)
{
    json_t *given = json_object_get(object, "tools"), *parsed = NULL;
    struct sample *out = r->out;
    const char *text;
    if (!value_filled(given))
        return true;
    if (json_is_string(given))
        given = parsed = json_loads(json_string_value(given), JSON_REJECT_DUPLICATES,
                                    NULL);
    bool ok = json_is_array(given) ? tools_text(r->item, given, &text)
                                   : fail("expected a list of tools");
    bool none = json_array_size(given) == 0;
    json_decref(parsed);
    if (!ok || none)
        return ok || fail_in("tools");
    bool system = out->nmessage && out->message[0].role == ROLE_SYSTEM;
    if (!system) {
        memmove(out->message + 1, out->message,
                sizeof *out->message * (size_t)out->nmessage++);
        out->message[0] = (struct message){.role = ROLE_SYSTEM};
    }
    struct message *m = &out->message[0];
    struct piece *piece = NEW(r->item, struct piece, m->npiece + 2);
    if (m->npiece)
        memcpy(piece, m->piece, sizeof *piece * (size_t)m->npiece);
    m->piece = piece;
    if (system)
        piece_add(m, -1, "\n\n");
    piece_add(m, -1, text);
    return true;
}

static bool turns_read(struct reading *r, const json_t *object)
{
    size_t turns = json_array_size(r->turns);
    r->out->message = NEW(r->item, struct message, turns + 2);
    if (!system_read(r, object))
        return false;
    for (size_t i = 0; i < turns; i++)
        if (!turn_read(r, i, &r->out->message[r->out->nmessage++]))
            return false;
    r->out->nimage = r->placed;
    return (r->placed || images_missing(r)) && tools_read(r, object);
}

bool sample_from_json(struct arena *item, const json_t *object, const struct dialect *d,
                      const struct shelf *shelf, struct sample *out)
{
    struct reading r = {.item = item, .dialect = d, .shelf = shelf, .out = out};
    if (!list_find(&r, object) || !unsupported_check(object))
        return false;
    const char *const used[] = {r.list, "system", "image", "images", "tools", NULL};
    if (!keys_check(object, LEVEL_RECORD, used) || !images_beside(&r, object))
        return false;
    if (!d->placeholders)
        return parts_room(&r) && turns_read(&r, object) && column_spent(&r);
    out->image = r.column;
    out->nimage = r.columns;
    return (!r.columns || marks_check(&r)) && turns_read(&r, object);
}
