/* reference.c - where an image's bytes are: a path, a file:// or data: URI, a member
 * of a tar key.  Apart from the readers because all of them end here. */
#include "data/source/parts.h"

#include "base/text.h"

#include <errno.h>
#include <strings.h>

bool image_named(const char *file, bool readable)
{
    static const char *const type[] = {".png", ".jpg", ".jpeg", ".webp", ".jpe",
                                       ".jfif"};
    static const char *const other[] = {
        ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif", ".jp2", ".jxl",
        ".ico", ".tga", ".ppm", ".pgm", ".img", ".image"};
    bool named = false;
    for (int i = 0; i < COUNT(type); i++)
        named |= text_ends(file, type[i]);
    for (int i = 0; i < COUNT(other) && !readable; i++)
        named |= text_ends(file, other[i]);
    return named;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f')
        return (c | 32) - 'a' + 10;
    return -1;
}

static bool percent_decode(struct arena *item, const char *from, size_t size,
                           struct bytes *out)
{
    *out = (struct bytes){arena_push(item, size + 1), 0};
    for (size_t i = 0; i < size; i++) {
        char c = from[i];
        if (c == '%') {
            int high = size - i > 2 ? hex(from[i + 1]) : -1;
            int low = size - i > 2 ? hex(from[i + 2]) : -1;
            if (high < 0 || low < 0)
                return fail("'%%' at byte %zu of the URI is not followed by two "
                            "hexadecimal digits", i);
            c = (char)(high * 16 + low);
            i += 2;
        }
        out->at[out->size++] = c;
    }
    return true;
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+' || c == '-')           /* RFC 4648 section 4 or 5 */
        return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

/* RFC 4648, both alphabets; white space ignored; the '=' at the end may be missing. */
static bool base64_decode(struct arena *item, const char *from, size_t size,
                          struct bytes *out)
{
    *out = (struct bytes){arena_push(item, size / 4 * 3 + 4), 0};
    uint32_t bits = 0;
    int held = 0, ended = 0;
    for (size_t i = 0; i < size; i++) {
        char c = from[i];
        if (c == ' ' || c == '\n' || c == '\r' || c == '\t')
            continue;
        int digit = base64_digit(c);
        if (c == '=' && ++ended <= 2)
            continue;
        if (digit < 0 || ended)
            return fail("base64 data is wrong at character %zu", i);
        bits = bits << 6 | (uint32_t)digit;
        held += 6;
        if (held >= 8) {
            held -= 8;
            out->at[out->size++] = (char)(bits >> held & 255);
        }
    }
    if (held == 6)
        return fail("base64 data ends inside a byte");
    return true;
}

static bool data_uri(struct arena *item, const char *text, size_t size,
                     struct bytes *out)
{
    const char *comma = memchr(text, ',', size);
    if (!comma)
        return fail("data: URI without a ','");
    const char *body = comma + 1;
    size_t left = size - (size_t)(body - text);
    static const char mark[] = ";base64";
    size_t marked = sizeof mark - 1;
    bool base64 = (size_t)(comma - text) >= marked &&
                  !strncasecmp(comma - marked, mark, marked);
    bool ok = base64 ? base64_decode(item, body, left, out)
                     : percent_decode(item, body, left, out);
    if (ok && out->size == 0)
        return fail("data: URI without data");
    return ok;
}

static bool file_uri(struct arena *item, const char *text, size_t size,
                     const char **path)
{
    const char *at = text + strlen("file://");
    if (!strncasecmp(at, "localhost/", strlen("localhost/")))
        at += strlen("localhost");
    if (*at != '/')
        return fail("'%.200s' is not a file of this machine, expected file:///...",
                    text);
    struct bytes decoded;
    if (!percent_decode(item, at, size - (size_t)(at - text), &decoded))
        return false;
    if (memchr(decoded.at, '\0', (size_t)decoded.size))
        return fail("'%.200s' holds %%00", text);
    *path = decoded.at;
    return true;
}

static bool member_named(const struct shelf *shelf, const char *text,
                         struct image_source *out)
{
    for (int i = 0; i < shelf->count; i++)
        if (!strcmp(shelf->label[i], text) ||
            !strcmp(strchr(shelf->label[i], '.') + 1, text)) {
            *out = shelf->member[i];
            return true;
        }
    return fail("image '%.200s' is none of the %d image member(s) of this key", text,
                shelf->count);
}

bool image_reference(struct arena *item, const char *text, size_t size,
                     const struct shelf *shelf, const char *name,
                     struct image_source *out)
{
    *out = (struct image_source){.name = name};
    if (size == 0)
        return fail("an image's path is empty");
    if (!strncasecmp(text, "data:", 5))
        return data_uri(item, text, size, &out->data);
    if (!strncasecmp(text, "http://", 7) || !strncasecmp(text, "https://", 8))
        return fail("image '%.200s' is on the network; download it and give its path",
                    text);
    if (!shelf->folder)
        return member_named(shelf, text, out);
    if (!strncasecmp(text, "file://", 7)) {
        if (!file_uri(item, text, size, &out->path))
            return false;
    } else {
        out->from = text[0] == '/' ? NULL : shelf->folder;
        out->path = out->from ? path_join(item, out->from, text)
                              : arena_copy(item, text, size);
    }
    out->name = out->path;
    return true;
}

bool image_source_read(struct arena *item, const struct image_source *from,
                       struct bytes *out)
{
    REQUIRE(!from->path == !!from->data.at);
    *out = from->data;
    if (from->path && !file_read(item, from->path, IMAGE_BYTES, out)) {
        int error = fail_machine_error();
        const char *at = strstr(fail_message(), from->path);    /* named once here */
        at = at ? at + strlen(from->path) : ": cannot be read";
        fail("image %s%s", from->name, at);
        if (from->from && !file_exists(from->path))
            fail("%s; paths start at %s, or where data.sources.N.images says",
                 fail_message(), from->from);
        fail_machine(error);
        return fail_kind(FAULT_DATA);
    }
    if (out->size > 0)
        return true;
    fail("image %s: is empty (0 bytes)", from->name);
    return fail_kind(FAULT_DATA);
}
