/* kind.c - what a file is, by its first bytes: names lie.
 *
 * Alone because what is not read is a longer list than what is: a data set's gif or a
 * pointer to a missing download gets an error that names it. */
#include "data/image/parts.h"

#include <ctype.h>

struct magic { int at, size; const char *bytes; };

static bool has(struct bytes file, struct magic m)
{
    return file.size >= m.at + m.size &&
           !memcmp(file.at + m.at, m.bytes, (size_t)m.size);
}

enum image_kind image_kind_of(const void *bytes, int64_t size)
{
    struct bytes file = {(char *)(uintptr_t)bytes, size};
    if (has(file, (struct magic){0, 3, "\xff\xd8\xff"}))
        return IMAGE_JPEG;
    if (has(file, (struct magic){0, 8, "\x89PNG\r\n\x1a\n"}))
        return IMAGE_PNG;
    if (has(file, (struct magic){0, 4, "RIFF"}) &&
        has(file, (struct magic){8, 4, "WEBP"}))
        return IMAGE_WEBP;
    return IMAGE_UNKNOWN;
}

/* The name of a picture format that is not read, or NULL. */
static const char *other_kind(struct bytes file)
{
    static const struct { struct magic magic; const char *name; } kind[] = {
        {{0, 4, "GIF8"}, "GIF"},
        {{4, 8, "ftypavif"}, "AVIF"}, {{4, 8, "ftypavis"}, "AVIF"},
        {{4, 7, "ftyphei"}, "HEIC"}, {{4, 7, "ftyphev"}, "HEIC"},
        {{4, 8, "ftypmif1"}, "HEIF"}, {{4, 8, "ftypmsf1"}, "HEIF"},
        {{0, 4, "II*\0"}, "TIFF"}, {{0, 4, "MM\0*"}, "TIFF"},
        {{0, 4, "II+\0"}, "TIFF"}, {{0, 4, "MM\0+"}, "TIFF"},
        {{0, 12, "\0\0\0\x0cjP  \r\n\x87\n"}, "JPEG 2000"},
        {{0, 4, "\xff\x4f\xff\x51"}, "JPEG 2000"},
        {{0, 12, "\0\0\0\x0cJXL \r\n\x87\n"}, "JPEG XL"},
        {{0, 2, "\xff\x0a"}, "JPEG XL"},
        {{0, 4, "II\xbc\x01"}, "JPEG XR"},
        {{0, 4, "\0\0\1\0"}, "ICO"}, {{0, 4, "8BPS"}, "Photoshop"},
        {{0, 4, "DDS "}, "DDS"}, {{0, 4, "qoif"}, "QOI"},
        {{0, 4, "v/1\x01"}, "OpenEXR"}, {{0, 10, "#?RADIANCE"}, "Radiance HDR"},
        {{0, 4, "<svg"}, "SVG"}, {{0, 5, "%PDF-"}, "PDF"},
        {{4, 4, "ftyp"}, "MP4 or QuickTime"},
    };
    for (int i = 0; i < COUNT(kind); i++)
        if (has(file, kind[i].magic))
            return kind[i].name;
    if (file.size >= 26 && has(file, (struct magic){0, 2, "BM"}) && !file.at[6] &&
        !file.at[7] && !file.at[8] && !file.at[9])      /* two reserved words */
        return "BMP";
    if (file.size >= 3 && file.at[0] == 'P' && file.at[1] >= '1' && file.at[1] <= '7' &&
        isspace((unsigned char)file.at[2]))
        return "PNM";
    return NULL;
}

/* A page of an error message or a pointer to a missing download often has an image's
 * name: its first bytes tell. */
bool image_unread(struct bytes file)
{
    const char *kind = other_kind(file);
    if (file.size == 0)
        return fail("image: the file is empty, expected JPEG, PNG or WebP");
    if (kind)
        return fail("image: its format is %s; JPEG, PNG and WebP are read", kind);
    if (has(file, (struct magic){0, 19, "version https://git"}))
        return fail("image: it is a Git LFS pointer; fetch the image itself "
                    "(git lfs pull)");
    char start[17] = "";
    for (int i = 0; i < COUNT(start) - 1 && i < file.size; i++)
        start[i] = isprint((unsigned char)file.at[i]) ? file.at[i] : '.';
    return fail("image: neither JPEG, PNG nor WebP: %lld byte(s) that start with "
                "\"%s\"",
                (long long)file.size, start);
}
