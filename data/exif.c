/* exif.c - the orientation tag of a photo, the only metadata that changes pixels.
 *
 * Alone because cameras and editors write broken EXIF in every way, and none of them
 * may fail an image or read outside it. */
#include "data/image_internal.h"

enum { TAG_ORIENTATION = 0x0112, TYPE_SHORT = 3, TYPE_LONG = 4 };

struct tiff {
    const uint8_t *at;
    int64_t size;
    bool big;                           /* most significant byte first */
};

/* `bytes` (2 or 4) as a number, or -1 outside the data. */
static int64_t number(const struct tiff *t, int64_t offset, int bytes)
{
    if (offset < 0 || offset > t->size - bytes)
        return -1;
    int64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | t->at[offset + (t->big ? i : bytes - 1 - i)];
    return value;
}

int exif_orientation(const uint8_t *at, int64_t size)
{
    if (size >= 6 && !memcmp(at, "Exif\0\0", 6)) {
        at += 6;
        size -= 6;
    }
    if (size < 8 || (memcmp(at, "II*\0", 4) && memcmp(at, "MM\0*", 4)))
        return 1;
    struct tiff t = {at, size, at[0] == 'M'};
    int64_t directory = number(&t, 4, 4);
    int64_t count = number(&t, directory, 2);
    for (int64_t i = 0; i < count; i++) {
        int64_t entry = directory + 2 + 12 * i;
        if (number(&t, entry, 2) != TAG_ORIENTATION)
            continue;
        int64_t type = number(&t, entry + 2, 2);
        int64_t value = type == TYPE_SHORT  ? number(&t, entry + 8, 2)
                        : type == TYPE_LONG ? number(&t, entry + 8, 4)
                                            : -1;
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}
