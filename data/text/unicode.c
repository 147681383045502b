/* unicode.c - normal form, white space, repair and the byte alphabet; utf8proc's tables
 * wherever tables are needed. */
#include "data/text/unicode.h"

#include <utf8proc.h>

int unicode_read(const char *text, int64_t size, int32_t *code)
{
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text, size, code);
    REQUIRE(n > 0);
    return (int)n;
}

int unicode_write(char *to, int32_t code)
{
    return (int)utf8proc_encode_char(code, (utf8proc_uint8_t *)to);
}

static bool is_space(int32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

int unicode_space(const char *text, int64_t size)
{
    int32_t code;
    if (size == 0)
        return 0;
    int n = unicode_read(text, size, &code);
    return is_space(code) ? n : 0;
}

int unicode_space_before(const char *text, int64_t size)
{
    int back = 1;
    while (back < size && ((unsigned char)text[size - back] & 0xc0) == 0x80)
        back++;
    return size > 0 ? unicode_space(text + size - back, back) : 0;
}

/* Below U+0300 there is nothing to reorder or compose, and most text stays there. */
static bool surely_nfc(const char *text, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        if ((unsigned char)text[i] >= 0xcc)
            return false;
    return true;
}

bool unicode_nfc(struct arena *a, const char *text, int64_t size, const char **to,
                 int64_t *to_size)
{
    *to = text;
    *to_size = size;
    if (surely_nfc(text, size))
        return true;
    const utf8proc_option_t option = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    const utf8proc_uint8_t *from = (const utf8proc_uint8_t *)text;
    utf8proc_ssize_t count = utf8proc_decompose(from, size, NULL, 0, option);
    if (count >= 0) {
        /* reencode() works in place and ends the text with a NUL */
        utf8proc_int32_t *code = NEW(a, utf8proc_int32_t, count + 1);
        count = utf8proc_decompose(from, size, code, count, option);
        count = count < 0 ? count : utf8proc_reencode(code, count, option);
        *to = (const char *)code;
        *to_size = count;
    }
    return count >= 0 || fail("NFC: %s", utf8proc_errmsg(count));
}

/* Bytes of the sequence at `s`: a character, or the longest start of a broken one. */
static int sequence(const unsigned char *s, int64_t size, bool *whole)
{
    int c = s[0], more = 0, least = 0x80, most = 0xbf;
    *whole = c < 0x80;
    if (c < 0xc2 || c > 0xf4)
        return 1;
    more = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    if (c == 0xe0)
        least = 0xa0;                   /* not longer than needed */
    if (c == 0xed)
        most = 0x9f;                    /* no surrogates */
    if (c == 0xf0)
        least = 0x90;
    if (c == 0xf4)
        most = 0x8f;                    /* not past U+10FFFF */
    for (int i = 1; i <= more; i++) {
        if (i >= size || s[i] < least || s[i] > most)
            return i;
        least = 0x80;
        most = 0xbf;
    }
    *whole = true;
    return 1 + more;
}

void unicode_repair(struct text *to, const char *bytes, int64_t size)
{
    int64_t good = 0;                   /* start of the good run not yet written */
    for (int64_t i = 0; i < size;) {
        bool whole;
        int n = sequence((const unsigned char *)bytes + i, size - i, &whole);
        if (!whole) {
            text_add_bytes(to, bytes + good, i - good);
            text_add_bytes(to, "\xef\xbf\xbd", 3);
            good = i + n;
        }
        i += n;
    }
    text_add_bytes(to, bytes + good, size - good);
}

static bool own_character(int byte)
{
    return (byte >= '!' && byte <= '~') ||
           (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

/* The others are 00-20, 7f-a0 and ad: 33, 34 and 1 of them. */
int unicode_from_byte(int byte)
{
    if (own_character(byte))
        return byte;
    return 0x100 + (byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7f + 33 : 67);
}

int unicode_to_byte(int32_t code)
{
    if (code < 0x100)
        return own_character(code) ? code : -1;
    int n = code - 0x100;
    return n < 33 ? n : n < 67 ? n - 33 + 0x7f : n == 67 ? 0xad : -1;
}
