/* text.c - text in arenas: grown at its end, split, read as numbers, compared. */
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <strings.h>

/* Is 1 the last whole number that the format prints before `end`? */
static bool one_before(const char *fmt, const char *end, va_list from)
{
    va_list args;
    long long last = 0;
    va_copy(args, from);
    for (const char *c = fmt; c < end; c++) {
        if (*c != '%' || *++c == '%')
            continue;
        int longs = 0;
        for (; !strchr("diuxXocspeEfgGa", *c); c++) {   /* finds the end, too */
            if (*c == '*')
                (void)va_arg(args, int);
            longs += *c == 'l' || *c == 'z' || *c == 't';
        }
        if (strchr("diuxXo", *c))
            last = longs == 0   ? va_arg(args, int)
                   : longs == 1 ? va_arg(args, long)
                                : va_arg(args, long long);
        else if (*c == 'c')
            (void)va_arg(args, int);
        else if (*c == 's' || *c == 'p')
            (void)va_arg(args, void *);
        else
            (void)va_arg(args, double);
    }
    va_end(args);
    return last == 1;
}

int text_format(char *to, size_t size, const char *fmt, va_list args)
{
    char plain[2048];
    size_t n = 0;
    if (!strstr(fmt, "s)"))
        return vsnprintf(to, size, fmt, args);
    REQUIRE(strlen(fmt) < sizeof plain);
    for (const char *c = fmt; *c;) {
        size_t mark = !strncmp(c, "(s)", 3) ? 3 : !strncmp(c, "(es)", 4) ? 4 : 0;
        bool plural = mark && !one_before(fmt, c, args);
        if (!mark)
            plain[n++] = *c++;
        for (size_t i = 1; plural && i + 1 < mark; i++)
            plain[n++] = c[i];
        c += mark;
    }
    plain[n] = 0;
    return vsnprintf(to, size, plain, args);
}

struct text text_make(struct arena *a)
{
    enum { ROOM = 64 };
    return (struct text){a, arena_push(a, ROOM), 0, ROOM};
}

/* Room for `size` more bytes and the NUL. */
static void text_reserve(struct text *t, int64_t size)
{
    if (t->room - t->size > size)
        return;
    t->room = MAX(2 * t->room, t->size + size + 1);
    char *at = arena_push(t->arena, (size_t)t->room);
    memcpy(at, t->at, (size_t)t->size);
    t->at = at;
}

void text_add(struct text *t, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = text_format(NULL, 0, fmt, args);
    REQUIRE(n >= 0);
    text_reserve(t, n);
    text_format(t->at + t->size, (size_t)n + 1, fmt, again);
    t->size += n;
    va_end(again);
    va_end(args);
}

void text_add_bytes(struct text *t, const void *from, int64_t size)
{
    if (size == 0)
        return;
    text_reserve(t, size);
    memcpy(t->at + t->size, from, (size_t)size);
    t->size += size;
    t->at[t->size] = 0;
}

bool text_starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

bool text_ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);
    return n >= m && strcasecmp(text + n - m, with) == 0;
}

/* strtod and strtoll skip leading space; a whole text has none. */
static bool number_begins(const char *text)
{
    return *text && strchr("+-.0123456789", *text);
}

bool text_number(const char *text, double *out)
{
    char *end;
    double x = strtod(text, &end);
    if (!number_begins(text) || end == text || *end || !isfinite(x))
        return false;
    *out = x;
    return true;
}

bool text_integer(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (!number_begins(text) || end == text || *end || errno)
        return false;
    *out = x;
    return true;
}

int text_split(struct arena *a, const char *text, const char *separators, char ***words)
{
    char *rest = arena_copy(a, text, strlen(text));
    char **word = NULL;
    int64_t count = 0, room = 0;
    for (;;) {
        rest += strspn(rest, separators);
        if (!*rest)
            break;
        GROW(a, word, count, room);
        word[count++] = rest;
        rest += strcspn(rest, separators);
        if (*rest)
            *rest++ = 0;
    }
    *words = word;
    return (int)count;
}

/* Levenshtein, one row at a time: cost[j] edits turn a[0..i) into b[0..j).  Letters are
 * the same in either case. */
int text_distance(const char *a, const char *b)
{
    struct arena memory = arena_make("text_distance");
    int n = (int)strlen(b);
    int *cost = NEW(&memory, int, n + 1);
    for (int j = 0; j <= n; j++)
        cost[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = cost[0];
        cost[0] = i + 1;
        for (int j = 0; j < n; j++) {
            int keep = diagonal + (tolower((unsigned char)a[i]) !=
                                   tolower((unsigned char)b[j]));
            diagonal = cost[j + 1];
            cost[j + 1] = MIN(keep, 1 + MIN(diagonal, cost[j]));
        }
    }
    int distance = cost[n];
    arena_free(&memory);
    return distance;
}

const char *text_nearest(const char *name, const char *const *candidates, int count)
{
    const char *best = NULL;
    int least = 0;
    size_t size = strlen(name);
    for (int i = 0; i < count; i++) {
        bool begun = size && !strncasecmp(name, candidates[i], size);
        int d = begun ? -1 : text_distance(name, candidates[i]);
        if (!best || d < least) {
            best = candidates[i];
            least = d;
        }
    }
    return best;
}

/* Bytes of the character at s, 0 where none begins.  The table of well-formed
 * sequences, Unicode 15, table 3-7: only the first byte after the lead is ever narrower
 * than 80..BF. */
static int character(const uint8_t *s, const uint8_t *end)
{
    uint8_t lead = *s, low = 0x80, high = 0xBF;
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    int size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (end - s < size)
        return 0;
    if (lead == 0xE0)
        low = 0xA0;                     /* overlong */
    if (lead == 0xED)
        high = 0x9F;                    /* surrogates */
    if (lead == 0xF0)
        low = 0x90;                     /* overlong */
    if (lead == 0xF4)
        high = 0x8F;                    /* above U+10FFFF */
    for (int i = 1; i < size; i++, low = 0x80, high = 0xBF)
        if (s[i] < low || s[i] > high)
            return 0;
    return size;
}

bool text_utf8(const char *text, int64_t size)
{
    const uint8_t *s = (const uint8_t *)text, *end = s + size;
    for (int n; s < end; s += n)
        if ((n = character(s, end)) == 0)
            return false;
    return true;
}

/* C0, DEL and C1 (U+0080 to U+009F). */
static bool controls(const uint8_t *s)
{
    return *s < ' ' || *s == 0x7F || (*s == 0xC2 && s[1] < 0xA0);
}

void text_show(FILE *to, const char *text, bool lines)
{
    const uint8_t *s = (const uint8_t *)text, *end = s + strlen(text);
    while (s < end) {
        int n = character(s, end);
        bool plain = n && (!controls(s) || *s == '\t' || (lines && *s == '\n'));
        if (plain)
            fwrite(s, 1, (size_t)n, to);
        for (int i = 0; !plain && i < MAX(n, 1); i++)
            fprintf(to, s[i] == '\n' ? "\\n" : "\\x%02x", s[i]);
        s += MAX(n, 1);
    }
}
