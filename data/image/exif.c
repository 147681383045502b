/* exif.c - the orientation of a photo, the only metadata that changes pixels.
 *
 * Alone because cameras and editors write broken EXIF in every way, and none of them
 * may fail an image or read outside it.  What counts is what Pillow's exif_transpose
 * takes: the first usable entry, numbers of any type, XMP where EXIF has no entry. */
#include "data/image/parts.h"

enum { TAG_ORIENTATION = 0x0112, HEADER = 8, ENTRY = 12 };
enum type {
    BYTE = 1, ASCII, SHORT, LONG, RATIONAL, SBYTE, UNDEFINED, SSHORT, SLONG, SRATIONAL,
    FLOAT, DOUBLE, IFD, LONG8 = 16,
};
static const int bytes_of[] = {
    [BYTE] = 1, [ASCII] = 1, [SHORT] = 2, [LONG] = 4, [RATIONAL] = 8, [SBYTE] = 1,
    [UNDEFINED] = 1, [SSHORT] = 2, [SLONG] = 4, [SRATIONAL] = 8, [FLOAT] = 4,
    [DOUBLE] = 8, [IFD] = 4, [LONG8] = 8,
};

struct tiff {
    struct bytes in;
    bool big;                           /* most significant byte first */
};

/* `bytes` (1 to 8) that lie in the data, as a number. */
static uint64_t number(const struct tiff *t, int64_t offset, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 |
                (uint8_t)t->in.at[offset + (t->big ? i : bytes - 1 - i)];
    return value;
}

/* An orientation of a type; what is no number, or out of range, counts as upright. */
static int orientation(const struct tiff *t, int64_t offset, int type)
{
    uint64_t bits = number(t, offset, bytes_of[type]);
    double value = (double)bits;
    if (type == BYTE || type == ASCII || type == UNDEFINED)
        return 1;
    if (type == RATIONAL || type == SRATIONAL) {
        uint32_t above = (uint32_t)number(t, offset, 4);
        uint32_t below = (uint32_t)number(t, offset + 4, 4);
        bool sign = type == SRATIONAL;
        value = sign ? (double)(int32_t)above : (double)above;
        value /= sign ? (double)(int32_t)below : (double)below; /* by 0: no number */
    } else if (type == FLOAT) {
        uint32_t word = (uint32_t)bits;
        float narrow;
        memcpy(&narrow, &word, sizeof narrow);
        value = (double)narrow;
    } else if (type == DOUBLE) {
        memcpy(&value, &bits, sizeof value);
    }
    for (int o = 1; o <= 8; o++)
        if (value == o)
            return o;
    return 1;
}

/* The orientation in a TIFF header's first directory, or 0: it holds none. */
static int exif_says(struct bytes exif)
{
    static const char *const start[] = {"II*\0", "MM\0*", "II\0*", "MM*\0", "MM\0+"};
    for (int i = 0; i < 2 && exif.size >= 6 && !memcmp(exif.at, "Exif\0\0", 6); i++)
        exif = (struct bytes){exif.at + 6, exif.size - 6};
    bool known = false;
    for (int i = 0; exif.size >= HEADER && i < COUNT(start); i++)
        known = known || !memcmp(exif.at, start[i], 4);
    if (!known)
        return 0;
    struct tiff t = {exif, exif.at[0] == 'M'};
    int64_t entry = (int64_t)number(&t, 4, 4), claimed = 0;
    if (entry > exif.size - 2)
        return 0;
    int64_t left = (int64_t)number(&t, entry, 2);
    for (entry += 2; left > 0 && entry <= exif.size - ENTRY; entry += ENTRY, left--) {
        uint64_t type = number(&t, entry + 2, 2);
        int size = type < (uint64_t)COUNT(bytes_of) ? bytes_of[type] : 0;
        int64_t bytes = size * (int64_t)number(&t, entry + 4, 4), at = entry + 8;
        if (bytes > 4) {
            claimed += bytes;
            if (claimed > exif.size)
                continue;
            at = (int64_t)number(&t, at, 4);
            if (at > exif.size - bytes)
                return 0;
        }
        if (bytes > 0 && number(&t, entry, 2) == TAG_ORIENTATION)
            return orientation(&t, at, (int)type);
    }
    return 0;
}

static int xmp_says(struct bytes xmp)
{
    static const char name[] = "tiff:Orientation";
    for (const char *end = xmp.at + xmp.size, *at = xmp.at; at < end; at++) {
        at = memmem(at, (size_t)(end - at), name, sizeof name - 1);
        if (!at)
            return 0;
        const char *value = at + sizeof name - 1;
        int mark = end - value >= 2 && !memcmp(value, "=\"", 2) ? 2
                   : end - value >= 1 && *value == '>'          ? 1
                                                                : 0;
        value += mark;
        if (mark && value < end && *value >= '0' && *value <= '9')
            return *value >= '1' && *value <= '8' ? *value - '0' : 1;
    }
    return 0;
}

int notes_orientation(const struct notes *n)
{
    int found = exif_says(n->exif);
    if (!found && n->xmp.size)
        found = xmp_says(n->xmp);
    return found ? found : 1;
}
