/* text.h - building text, taking it apart, and guessing what was meant. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include "base/arena.h"

#include <stdarg.h>

struct text {                   /* a growing text inside an arena; `at` ends in a NUL */
    struct arena *arena;
    char *at;
    int64_t size, room;
};
/* vsnprintf, with one thing more: "(s)" or "(es)" behind a word of the format is left
 * out where the whole number printed before it is 1, else only its brackets are.  All
 * messages, and the functions below, are formatted so. */
int text_format(char *to, size_t size, const char *fmt, va_list args);
struct text text_make(struct arena *a);
void text_add(struct text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
void text_add_bytes(struct text *t, const void *from, int64_t size);

bool text_starts(const char *text, const char *with);
bool text_ends(const char *text, const char *with);     /* ASCII case ignored */
bool text_number(const char *text, double *out);        /* the whole text, finite */
bool text_integer(const char *text, int64_t *out);      /* the whole text, in range */
/* Words separated by any of `separators`; empty ones are left out. */
int text_split(struct arena *a, const char *text, const char *separators,
               char ***words);
int text_distance(const char *a, const char *b);        /* edits from a to b; H is h */
/* The candidate nearest to `name`, for messages: one that begins with it, else by
 * edits; NULL when there is none. */
const char *text_nearest(const char *name, const char *const *candidates, int count);
bool text_utf8(const char *text, int64_t size);         /* is it valid UTF-8? */
/* Prints for people, whose terminal obeys control characters: those but tabs (and, with
 * `lines`, line breaks) and bytes that are no UTF-8 appear as \xNN.  All that comes
 * from a name, a file or a model goes to people through here. */
void text_show(FILE *to, const char *text, bool lines);

#endif
