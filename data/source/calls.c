/* calls.c - an assistant's "tool_calls", and the "tools" it may call, as the
 * text that the family's template makes of them.  Apart from the turns because it
 * writes JSON, as Python does. */
#include "data/source/parts.h"

#include "base/text.h"

#include <ctype.h>

/* Numbers with a fraction have more than one spelling. */
static bool has_real(const json_t *value)
{
    size_t i;
    const char *key;
    json_t *inner;
    bool real = json_is_real(value);
    json_array_foreach(value, i, inner)
        real |= has_real(inner);
    json_object_foreach((json_t *)value, key, inner)
        real |= has_real(inner);
    return real;
}

static bool json_add(struct arena *item, struct text *t, const json_t *value)
{
    size_t size = json_dumpb(value, NULL, 0, 0);
    char *text = arena_push(item, size + 1);
    if (json_dumpb(value, text, size, 0) != size)
        return fail("cannot be written as JSON");
    for (char *at = text; *at; at++)    /* \u001F is \u001f there */
        if (*at == '\\' && *++at == 'u')
            for (int i = 1; i <= 4; i++)
                at[i] = (char)tolower((unsigned char)at[i]);
    text_add(t, "%s", text);
    return true;
}

static bool arguments_add(struct arena *item, struct text *t, const json_t *arguments)
{
    if (json_is_string(arguments)) {
        text_add_bytes(t, json_string_value(arguments),
                       (int64_t)json_string_length(arguments));
        return true;
    }
    if (!json_is_object(arguments) || has_real(arguments))
        return fail("arguments: expected a string, or an object without fractions (a "
                    "string says how they are spelt)");
    return json_add(item, t, arguments);
}

static bool call_add(struct arena *item, struct text *t, const json_t *call)
{
    static const char *const outer[] = {"type", "function", NULL};
    static const char *const inner[] = {"type", "name", "arguments", NULL};
    const json_t *function = json_object_get(call, "function");
    if (function && !keys_check(call, LEVEL_PART, outer))
        return false;
    call = function ? function : call;
    if (!json_is_object(call) || !keys_check(call, LEVEL_PART, inner))
        return json_is_object(call) ? false : fail("expected an object");
    const char *name = json_string_value(json_object_get(call, "name"));
    if (!name)
        return fail("name: expected a string");
    text_add(t, "<tool_call>\n{\"name\": \"%s\", \"arguments\": ", name);
    if (!arguments_add(item, t, json_object_get(call, "arguments")))
        return false;
    text_add(t, "}\n</tool_call>");
    return true;
}

bool tool_calls_text(struct arena *item, const json_t *calls, bool behind,
                     const char **out)
{
    struct text t = text_make(item);
    size_t i;
    json_t *call;
    if (!json_is_array(calls))
        return fail("expected a list of calls");
    json_array_foreach(calls, i, call) {
        if (behind || i)
            text_add(&t, "\n");
        if (!call_add(item, &t, call))
            return fail_in("[%zu]", i);
    }
    *out = t.at;
    return true;
}

bool tools_text(struct arena *item, const json_t *tools, const char **out)
{
    struct text t = text_make(item);
    size_t i;
    json_t *tool;
    text_add(&t, "# Tools\n\nYou may call one or more functions to assist with the "
             "user query.\n\nYou are provided with function signatures within "
             "<tools></tools> XML tags:\n<tools>");
    json_array_foreach(tools, i, tool) {
        if (!json_is_object(json_object_get(tool, "function")) || has_real(tool))
            return fail("[%zu]: expected {\"type\": \"function\", \"function\": "
                        "{...}} without fractions", i);
        text_add(&t, "\n");
        if (!json_add(item, &t, tool))
            return fail_in("[%zu]", i);
    }
    text_add(&t, "\n</tools>\n\nFor each function call, return a json object with "
             "function name and arguments within <tool_call></tool_call> XML tags:\n"
             "<tool_call>\n{\"name\": <function-name>, \"arguments\": "
             "<args-json-object>}\n</tool_call>");
    *out = t.at;
    return true;
}
