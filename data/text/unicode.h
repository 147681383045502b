/* unicode.h - the little that text handling needs to know of Unicode. */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include "base/text.h"

/* White space (the Unicode property) at the start of text[0..size): its bytes, or 0. */
int unicode_space(const char *text, int64_t size);
/* The same at the end. */
int unicode_space_before(const char *text, int64_t size);
/* Normal form C of valid UTF-8; returns `text` itself where it is that already. */
MUST_USE bool unicode_nfc(struct arena *a, const char *text, int64_t size,
                          const char **to, int64_t *to_size);
/* Append bytes as UTF-8: each longest start of a broken sequence becomes one U+FFFD
 * (Unicode 15, section 3.9, "substitution of maximal subparts"). */
void unicode_repair(struct text *to, const char *bytes, int64_t size);

/* The byte alphabet of byte-level BPE: printable Latin-1 bytes are their own character,
 * the other 68 become U+0100 and up, in order. */
int unicode_from_byte(int byte);                /* code point */
int unicode_to_byte(int32_t code);              /* -1: not of the alphabet */
/* Write `code` as UTF-8; returns its bytes (1-4). */
int unicode_write(char *to, int32_t code);
/* Read one code point of valid UTF-8; returns its bytes. */
int unicode_read(const char *text, int64_t size, int32_t *code);

#endif
