/* hf_json.c - keys are read with their range, or refused with what they hold. */
#include "checkpoint/hf_json.h"

#include "base/json_text.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>

bool json_read(const char *name, const char *json, int64_t size, json_t **out)
{
    json_error_t error;
    struct arena a = arena_make("json");
    struct bytes text = json_tamed(&a, (struct bytes){(char *)json, size}, "");
    *out = json_loadb(text.at, (size_t)text.size, 0, &error);
    arena_free(&a);
    if (!*out)
        return fail("config: %s line %d: %s", name, error.line, error.text);
    if (json_is_object(*out))
        return true;
    json_decref(*out);
    return fail("config: %s: it is no JSON object", name);
}

json_t *field(struct reader *r, const char *key)
{
    json_t *j = json_object_get(r->object, key);
    return json_is_null(j) ? NULL : j;
}

void wrong(struct reader *r, const char *key, const char *expected)
{
    json_t *j = json_object_get(r->object, key);
    char *text = j ? json_dumps(j, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (r->ok)
        fail("config: %s: %s%s is %.80s, expected %s", r->file, r->section, key,
             text ? text : "missing", expected);
    free(text);
    r->ok = false;
}

void note(struct reader *r, const char *fmt, ...)
{
    char line[400];
    va_list args;
    if (!r->notes)
        return;
    va_start(args, fmt);
    text_format(line, sizeof line, fmt, args);
    va_end(args);
    text_add(r->notes, "%s: %s%s\n", r->file, r->section, line);
}

int read_int(struct reader *r, const char *key, int preset, int least, int most)
{
    json_t *j = field(r, key);
    char range[80];
    if (!j && preset != NEEDED)
        return preset;
    json_int_t value = json_integer_value(j);
    if (json_is_integer(j) && value >= least && value <= most)
        return (int)value;
    if (least == most)
        snprintf(range, sizeof range, "%d", least);
    else
        snprintf(range, sizeof range, "a whole number in %d..%d", least, most);
    wrong(r, key, range);
    return least;
}

double read_real(struct reader *r, const char *key, double preset, double least)
{
    json_t *j = field(r, key);
    char range[80];
    if (!j)
        return preset;
    if (json_is_number(j) && json_number_value(j) >= least)
        return json_number_value(j);
    snprintf(range, sizeof range, "a number of at least %g", least);
    wrong(r, key, range);
    return preset;
}

bool read_bool(struct reader *r, const char *key, bool preset)
{
    json_t *j = field(r, key);
    if (j && !json_is_boolean(j))
        wrong(r, key, "true or false");
    return j ? json_is_true(j) : preset;
}

/* The key must be absent or say exactly this. */
void only_text(struct reader *r, const char *key, const char *value)
{
    json_t *j = field(r, key);
    char quoted[80];
    if (j && (!json_is_string(j) || strcmp(json_string_value(j), value))) {
        snprintf(quoted, sizeof quoted, "\"%s\"", value);
        wrong(r, key, quoted);
    }
}

void only_real(struct reader *r, const char *key, double value)
{
    json_t *j = field(r, key);
    char text[80];
    if (j && (!json_is_number(j) || json_number_value(j) != value)) {
        snprintf(text, sizeof text, "%.17g", value);
        wrong(r, key, text);
    }
}

void only_bool(struct reader *r, const char *key, bool value)
{
    json_t *j = field(r, key);
    if (j && (!json_is_boolean(j) || json_is_true(j) != value))
        wrong(r, key, value ? "true" : "false");
}

struct reader section(struct reader *top, const char *key, const char *prefix)
{
    json_t *j = field(top, key);
    if (!json_is_object(j)) {
        wrong(top, key, "an object");
        j = NULL;
    }
    return (struct reader){top->file, prefix, j, top->ok, top->notes};
}

int read_list(struct reader *r, const char *key, int *to, int most, int largest)
{
    json_t *j = field(r, key), *item;
    char range[80];
    size_t i;
    if (!j)
        return 0;
    bool ok = json_is_array(j) && json_array_size(j) <= (size_t)most;
    json_array_foreach(j, i, item) {
        json_int_t value = json_integer_value(item);
        ok = ok && json_is_integer(item) && value >= 0 && value <= largest;
        if (ok)
            to[i] = (int)value;
    }
    if (ok)
        return (int)json_array_size(j);
    snprintf(range, sizeof range, "a list of at most %d whole numbers in 0..%d", most,
             largest);
    wrong(r, key, range);
    return 0;
}

void read_channels(struct reader *r, const char *key, double least, float to[3])
{
    json_t *j = field(r, key), *item;
    float value[3];
    char range[80];
    size_t i;
    if (!j)
        return;
    bool ok = json_array_size(j) == 3;
    json_array_foreach(j, i, item) {
        ok = ok && json_is_number(item) && json_number_value(item) >= least;
        if (ok)
            value[i] = (float)json_number_value(item);
    }
    snprintf(range, sizeof range, "three numbers of at least %g", least);
    if (ok)
        memcpy(to, value, sizeof value);
    else
        wrong(r, key, range);
}
