/* pattern.h - a tokenizer file's pattern, matched with PCRE2.
 *
 * Such files write patterns for another engine (Oniguruma, as `tokenizers` uses it).
 * The constructs on which both agree are kept, white space is spelt out, and what would
 * mean something else here is refused by name. */
#ifndef TEXT_PATTERN_H
#define TEXT_PATTERN_H

#include "base/arena.h"

struct pattern;
MUST_USE bool pattern_make(struct arena *a, const char *text, struct pattern **out);
/* Gives back its machine code; the rest is the arena's. */
void pattern_free(struct pattern *p);

/* One walk over at most `size` bytes of text that is valid UTF-8; memory in `a`. */
struct pattern_walk;
struct pattern_walk *pattern_walk(const struct pattern *p, struct arena *a,
                                  int64_t size);
/* The first match in text[from..size) as [*start, *end), never empty; *start = size
 * where there is none.  Fails when the engine gives up, or looks at much more text than
 * it matches: the time for all matches grows with the text, not with its square. */
MUST_USE bool pattern_next(struct pattern_walk *w, const char *text, int64_t size,
                           int64_t from, int64_t *start, int64_t *end);

#endif
