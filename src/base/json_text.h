/* json_text.h - JSON as text, before it is parsed and where only a word of it changes.
 *
 * Stands alone because jansson can do neither: it refuses a whole file for a NaN or a
 * number too large for it in a field that nobody reads (Python writes both), and prints
 * numbers other than they were. */
#ifndef BASE_JSON_TEXT_H
#define BASE_JSON_TEXT_H

#include "base/file.h"

/* The same text with NaN, Infinity and numbers beyond 64 bits as texts that begin with
 * `mark`: whoever reads such a field finds no number there. */
struct bytes json_tamed(struct arena *a, struct bytes text, const char *mark);
/* The same text with `value`, a plain word, for the texts under these keys (NULL at the
 * end) in the outermost object and in objects of it; where the outermost has none,
 * under the first key at its beginning. */
struct bytes json_with(struct arena *a, struct bytes text, const char *const *key,
                       const char *value);

#endif
