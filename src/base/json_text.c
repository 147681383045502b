/* json_text.c - walks JSON token by token; what is no JSON is passed on as it is. */
#include "base/json_text.h"

#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Behind the token at `at`: a text, a word or number, or one character. */
static const char *token_end(const char *at, const char *end)
{
    const char *s = at + 1;
    if (*at == '"') {
        while (s < end && *s != '"')
            s += *s == '\\' && s + 1 < end ? 2 : 1;
        return s < end ? s + 1 : end;
    }
    if (isalnum((unsigned char)*at) || *at == '-')
        while (s < end && (isalnum((unsigned char)*s) || strchr("+-.", *s)))
            s++;
    return s;
}

/* Is it a number that jansson does not take? */
static bool wild(const char *at, const char *end)
{
    char word[64], *rest;
    size_t size = (size_t)(end - at);
    const char *first = at + (*at == '-');
    if (size - (size_t)(first - at) == 8 && !memcmp(first, "Infinity", 8))
        return true;
    if (size == 3 && !memcmp(at, "NaN", 3))
        return true;
    if (first == end || !isdigit((unsigned char)*first))
        return false;
    if (size >= sizeof word)            /* so long a number has no business here */
        return true;
    memcpy(word, at, size);
    word[size] = 0;
    errno = 0;
    bool whole = !strpbrk(word, ".eE");
    if (whole)
        (void)strtoll(word, &rest, 10);
    else if (isfinite(strtod(word, &rest)))
        errno = 0;                      /* too small is only inexact */
    return errno == ERANGE;
}

struct bytes json_tamed(struct arena *a, struct bytes text, const char *mark)
{
    struct text out = text_make(a);
    const char *end = text.at + text.size, *from = text.at;
    for (const char *at = text.at, *next; at < end; at = next) {
        next = token_end(at, end);
        if (!wild(at, next))
            continue;
        text_add_bytes(&out, from, at - from);
        text_add(&out, "\"%s%.*s\"", mark, (int)(next - at), at);
        from = next;
    }
    text_add_bytes(&out, from, end - from);
    return (struct bytes){out.at, out.size};
}

static bool is_key(const char *at, const char *end, const char *const *key)
{
    for (; *key; key++)
        if ((size_t)(end - at) == strlen(*key) + 2 &&
            !memcmp(at + 1, *key, strlen(*key)))
            return true;
    return false;
}

static const char *blanks_end(const char *at, const char *end)
{
    while (at < end && isspace((unsigned char)*at))
        at++;
    return at;
}

/* The place behind the colon when the text at..next is one of the keys, else NULL. */
static const char *value_of(const char *at, const char *next, const char *end,
                            const char *const *key)
{
    if (*at != '"' || !is_key(at, next, key))
        return NULL;
    next = blanks_end(next, end);
    if (next == end || *next != ':')
        return NULL;
    next = blanks_end(next + 1, end);
    return next < end && *next == '"' ? next : NULL;
}

static bool has_key(struct bytes text, const char *const *key)
{
    const char *end = text.at + text.size;
    int depth = 0;
    for (const char *at = text.at; at < end; at = token_end(at, end)) {
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        if (depth == 1 && value_of(at, token_end(at, end), end, key))
            return true;
    }
    return false;
}

struct bytes json_with(struct arena *a, struct bytes text, const char *const *key,
                       const char *value)
{
    struct text out = text_make(a);
    const char *end = text.at + text.size;
    bool missing = !has_key(text, key);
    int depth = 0;
    for (const char *at = text.at, *next; at < end; at = next) {
        next = token_end(at, end);
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        const char *old = depth <= 2 ? value_of(at, next, end, key) : NULL;
        text_add_bytes(&out, at, (old ? old : next) - at);
        if (old) {
            text_add(&out, "\"%s\"", value);
            next = token_end(old, end);
        }
        if (missing && *at == '{') {
            const char *first = blanks_end(next, end);
            text_add(&out, "\n  \"%s\": \"%s\"%s", *key, value,
                     first < end && *first != '}' ? "," : "");
            missing = false;
        }
    }
    return (struct bytes){out.at, out.size};
}
