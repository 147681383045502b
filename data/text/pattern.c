/* pattern.c - Oniguruma's dialect to PCRE2's, and matching with machine code. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/text/pattern.h"

#include "base/text.h"

#include <pcre2.h>

struct pattern { pcre2_code *code; };
struct pattern_walk {
    const pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    int64_t left;                       /* bytes that may still be looked at in vain */
};

/* A match is first looked for in a little text and, where it needs to see more, in
 * twice as much.  What was looked at in vain is bounded, a byte of the whole text, and
 * so are the steps within a match, a byte of what it may see. */
enum { WINDOW = 64, LOOKS = 64, LOOKS_LEAST = 1 << 16 };

/* White_Space inside brackets; PCRE2's own \s also takes U+180E. */
static const char space[] = "\\t-\\r\\x{85}\\p{Z}";

/* A backslash and what belongs to it; `*at` is moved past it. */
static bool escape(const char **at, bool bracket, struct text *to)
{
    char c = (*at)[1];
    *at += 2;
    if (c == 's' || (c == 'S' && !bracket)) {
        text_add(to, bracket ? "%s" : c == 's' ? "[%s]" : "[^%s]", space);
        return true;
    }
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    bool digit = c >= '0' && c <= '9';
    if (c == '\0' || digit || (letter && !strchr("rntfdDpPx", c)) ||
        (c == 'x' && **at != '{'))
        return fail("pattern: \\%c%s is not supported", c ? c : ' ',
                    bracket ? " between brackets" : "");
    text_add(to, "\\%c", c);
    const char *close = **at == '{' && strchr("pPx", c) ? strchr(*at, '}') : NULL;
    if (close) {
        text_add_bytes(to, *at, close + 1 - *at);
        *at = close + 1;
    }
    return true;
}

/* "(?" and what follows up to the ':' or the like: of the options only i is common. */
static bool group(const char *at)
{
    if (at[1] == '*')
        return fail("pattern: (* is not supported");
    if (at[1] != '?')
        return true;
    at += 2;
    if (*at == '<' && at[1] != '=' && at[1] != '!')
        return fail("pattern: named groups are not supported");
    while (*at == 'i' || *at == '-')
        at++;
    return (*at && strchr(":=!<>)", *at)) ||
           fail("pattern: (?%c is not supported", *at);
}

static bool translate(const char *from, struct text *to)
{
    bool bracket = false;
    for (const char *at = from; *at;) {
        if (*at == '\\') {
            if (!escape(&at, bracket, to))
                return false;
            continue;
        }
        if (!bracket && *at == '(' && !group(at))
            return false;
        if (bracket && (*at == '[' || (*at == '&' && at[1] == '&')))
            return fail("pattern: sets inside brackets are not supported");
        if (!bracket && ((*at == '}' && at[1] == '+') || (*at == '{' && at[1] == ',')))
            return fail("pattern: %.2s is not supported", at);
        if (*at == '[' || *at == ']') {
            bracket = *at == '[';
            int open = bracket ? 1 + (at[1] == '^') : 1;
            text_add_bytes(to, at, open);
            at += open;
            if (bracket && *at == ']')
                return fail("pattern: brackets are empty");
            continue;
        }
        text_add_bytes(to, at++, 1);
    }
    return true;
}

/* PCRE2's blocks live in an arena, so nothing is freed alone. */
static void *block_push(size_t size, void *arena)
{
    return arena_push(arena, size);
}

static void block_keep(void *block, void *arena)
{
    (void)block;
    (void)arena;
}

static bool engine_fail(int code)
{
    char why[160];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return fail("pattern: %s", why);
}

bool pattern_make(struct arena *a, const char *text, struct pattern **out)
{
    struct text ours = text_make(a);
    if (!text_utf8(text, (int64_t)strlen(text)))
        return fail("pattern: not UTF-8");
    if (!translate(text, &ours))
        return false;
    pcre2_general_context *memory =
        pcre2_general_context_create(block_push, block_keep, a);
    pcre2_compile_context *rules = pcre2_compile_context_create(memory);
    pcre2_set_newline(rules, PCRE2_NEWLINE_LF);
    int error;
    size_t at;
    /* MULTILINE: ^ and $ are borders of lines in the other engine */
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)ours.at, (size_t)ours.size,
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at,
        rules);
    if (!code) {
        engine_fail(error);
        return fail_in("at character %zu of %s", at, ours.at);
    }
    uint32_t empty = 0;
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        pcre2_code_free(code);
        return fail("pattern: %s may match nothing at all; each match must take text",
                    text);
    }
    /* A machine without such a compiler matches the same, only slower. */
    error = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    if (error && error != PCRE2_ERROR_JIT_BADOPTION) {
        pcre2_code_free(code);
        return engine_fail(error);
    }
    *out = NEW(a, struct pattern, 1);
    (*out)->code = code;
    return true;
}

void pattern_free(struct pattern *p)
{
    pcre2_code_free(p->code);
}

struct pattern_walk *pattern_walk(const struct pattern *p, struct arena *a,
                                  int64_t size)
{
    pcre2_general_context *memory =
        pcre2_general_context_create(block_push, block_keep, a);
    struct pattern_walk *w = NEW(a, struct pattern_walk, 1);
    *w = (struct pattern_walk){
        .code = p->code, .match = pcre2_match_data_create(1, memory),
        .limits = pcre2_match_context_create(memory),
        .left = LOOKS_LEAST + LOOKS * size};
    return w;
}

/* A match within text[..to) that does not depend on what follows; *n as from PCRE2. */
static bool match_within(struct pattern_walk *w, const char *text, int64_t to,
                         int64_t from, bool whole, int *n)
{
    uint32_t options = PCRE2_NO_UTF_CHECK | (whole ? 0 : PCRE2_PARTIAL_HARD);
    int64_t most = LOOKS_LEAST + LOOKS * (to - from);
    pcre2_set_match_limit(w->limits, (uint32_t)MIN(most, UINT32_MAX));
    for (int i = 0; i < 2; i++) {
        *n = pcre2_match(w->code, (PCRE2_SPTR)text, (size_t)to, (size_t)from, options,
                         w->match, w->limits);
        if (*n != PCRE2_ERROR_JIT_STACKLIMIT)
            break;
        options |= PCRE2_NO_JIT;        /* the interpreter's stack can grow */
    }
    return whole || (*n != PCRE2_ERROR_PARTIAL && *n != PCRE2_ERROR_NOMATCH);
}

bool pattern_next(struct pattern_walk *w, const char *text, int64_t size, int64_t from,
                  int64_t *start, int64_t *end)
{
    *start = *end = size;
    int n = 0;
    for (int64_t window = WINDOW;; window *= 2) {
        int64_t to = MIN(size - from, window) + from;
        while (to < size && ((unsigned char)text[to] & 0xc0) == 0x80)
            to++;                       /* between characters */
        if (match_within(w, text, to, from, to == size, &n))
            break;
        w->left -= to - from;
    }
    if (n == PCRE2_ERROR_NOMATCH)
        return true;
    if (n < 0)
        return engine_fail(n);
    const size_t *bound = pcre2_get_ovector_pointer(w->match);
    *start = (int64_t)bound[0];
    *end = (int64_t)bound[1];
    REQUIRE(*start >= from && *end > *start && *end <= size);
    return w->left > 0 ||
           fail("pattern: looks ahead too far again and again (byte %lld of %lld)",
                (long long)*start, (long long)size);
}
