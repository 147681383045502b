/* tokenizer.h - text to ids and back, from any byte-level-BPE tokenizer.json.
 *
 * Added tokens are cut out first, then the normaliser (NFC or none), the file's own
 * pre-tokenizer pattern (PCRE2), bytes to symbols, merges by rank.  Equal to the
 * `tokenizers` package without its post-processor.  Read-only after tokenizer_open, so
 * shared by all workers; what a file asks for and this lacks is refused by name. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "base/arena.h"

struct tokenizer;
MUST_USE bool tokenizer_open(struct arena *a, const char *path, struct tokenizer **out);
/* From text in memory; `name` is for messages.  (Also the fuzzing entry.) */
MUST_USE bool tokenizer_parse(struct arena *a, const char *name, const char *json,
                              int64_t size, struct tokenizer **out);
/* Gives back the pattern's machine code; everything else is the arena's. */
void tokenizer_close(struct tokenizer *t);

struct ids { int32_t *at; int64_t count, room; };
/* What becomes of text that looks like a special token: it stays text; or it becomes
 * the token if that is harmless, a mark within text (<|box_start|>) and no control
 * token (<|im_end|>) or marker of an image; or always.  Added tokens that are not
 * special (<tool_call>) are words that text may always have. */
enum special { SPECIAL_TEXT, SPECIAL_KEEP, SPECIAL_ALL };
/* Append the ids of UTF-8 `text` to `out`; `a` also holds scratch until its reset.
 * Invalid UTF-8 fails. */
MUST_USE bool tokenizer_encode(const struct tokenizer *t, struct arena *a,
                               const char *text, int64_t size, enum special special,
                               struct ids *out);
/* At least so many ids come of any text of `size` bytes. */
int64_t tokenizer_least(const struct tokenizer *t, int64_t size);
void ids_add(struct arena *a, struct ids *to, int32_t id);
/* Text of ids; with `special` false, special tokens are left out, unknown ids always.
 * Bytes that are no UTF-8 become U+FFFD, as the reference does. */
char *tokenizer_decode(const struct tokenizer *t, struct arena *a, const int32_t *ids,
                       int64_t count, bool special);
int tokenizer_id(const struct tokenizer *t, const char *token); /* -1: none */
const char *tokenizer_token(const struct tokenizer *t, int id); /* NULL: none */
/* Bytes of text that `id` stands for; 0 if there is no such id. */
int64_t tokenizer_bytes(const struct tokenizer *t, int id);
/* Is `id` special, and does it leave the text beside it alone (no stripping)?  Then it
 * can be put between texts by id, and no text encoded as SPECIAL_TEXT has it. */
bool tokenizer_marker(const struct tokenizer *t, int id);
bool tokenizer_harmless(const struct tokenizer *t, int id);     /* see enum special */
int tokenizer_size(const struct tokenizer *t);                  /* highest id + 1 */

#endif
