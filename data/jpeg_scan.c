/* jpeg_scan.c - a JPEG file scan by scan: what may come between scans, in which order
 * bits of coefficients may come, and where everything lies meanwhile. */
#include "data/jpeg_quick.h"

enum {
    DHT = 0xc4, EOI = 0xd9, SOS = 0xda, DRI = 0xdd,
    /* Looked-up values have up to LOOK - 1 bits and must fit 16 with their low bits. */
    MOST_LOW = 15 - (LOOK - 1),
};

struct quick {
    const struct jpeg_frame *frame;
    struct jpeg_part part[JPEG_PARTS];
    struct huffman table[2][TABLES];
    struct jpeg_scan scan;
    const uint8_t *at, *end;            /* of the file, between scans */
    int across, down;                   /* MCUs of all parts */
    int interval;
    int scans;                          /* so far */
};

static int round_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* ---- what it takes ---- */

/* Grey, or Y of up to 2 x 2 with single chroma samples; each part with its number. */
static bool frame_is_common(const struct jpeg_frame *f)
{
    for (int i = 0; i < f->parts; i++) {
        int most_samples = i ? 1 : 2;
        if (!f->part[i].quant || f->part[i].h > most_samples ||
            f->part[i].v > most_samples)
            return false;
        for (int j = 0; j < i; j++)
            if (f->part[i].id == f->part[j].id)
                return false;
    }
    return f->parts == 1 || f->parts == JPEG_PARTS;
}

static bool tables_of_frame(struct quick *q)
{
    for (int ac = 0; ac < 2; ac++)
        for (int i = 0; i < TABLES; i++) {
            const uint8_t *counts = q->frame->table[ac][i].counts;
            if (counts && !huffman_make(&q->table[ac][i], !ac, counts,
                                        q->frame->table[ac][i].symbols))
                return false;
        }
    return true;
}

/* `whole`: all of it is kept, not one row of MCUs. */
static void parts_place(struct quick *q, bool whole)
{
    const struct jpeg_frame *f = q->frame;
    int h = f->part[0].h, v = f->part[0].v;
    q->across = round_up(f->width, SIDE * h);
    q->down = round_up(f->height, SIDE * v);
    for (int i = 0; i < f->parts; i++) {
        struct jpeg_part *p = &q->part[i];
        *p = (struct jpeg_part){.h = f->part[i].h, .v = f->part[i].v,
                                .quant = f->part[i].quant};
        p->across = round_up(f->width * p->h, SIDE * h);
        p->down = round_up(f->height * p->v, SIDE * v);
        p->groups = round_up(q->across * p->h, LANES);
        p->rows = whole ? q->down * p->v : p->v;
        memset(p->known, UNKNOWN, sizeof p->known);
    }
}

static bool parts_hold(struct quick *q, struct arena *a, bool nonzero, int64_t memory)
{
    int64_t groups = 0, bytes = pixels_memory(q->frame, q->part);
    for (int i = 0; i < q->frame->parts; i++)
        groups += (int64_t)q->part[i].rows * q->part[i].groups;
    bytes += groups * (LANES * (AREA * (int)sizeof(int16_t) + 8 * nonzero) + 8);
    if (bytes + (int64_t)scan_room(q->frame->file.size) > memory)
        return false;
    for (int i = 0; i < q->frame->parts; i++) {
        struct jpeg_part *p = &q->part[i];
        size_t n = (size_t)p->rows * (size_t)p->groups;
        p->coefficients = arena_room(a, n * AREA * LANES * sizeof *p->coefficients);
        p->live = NEW(a, uint64_t, n);
        if (nonzero)
            p->nonzero = NEW(a, uint64_t, n * LANES);
    }
    q->scan.clean = arena_room(a, scan_room(q->frame->file.size));
    return true;
}

/* ---- between scans ---- */

/* The content of the segment at `at`, which moves behind it; NULL at the file's end. */
static const uint8_t *segment_content(struct quick *q, int64_t *size)
{
    if (q->end - q->at < 2)
        return NULL;
    const uint8_t *content = q->at + 2;
    *size = (q->at[0] << 8 | q->at[1]) - 2;
    if (*size < 0 || *size > q->end - content)
        return NULL;
    q->at = content + *size;
    return content;
}

static bool read_tables(struct quick *q)
{
    int64_t size;
    const uint8_t *at = segment_content(q, &size);
    while (at && size > 0) {
        uint8_t counts[17] = {0};
        int total = 0, which = at[0];
        if (size < COUNT(counts) || which & ~(0x10 | (TABLES - 1)))
            return false;
        for (int i = 1; i < COUNT(counts); i++)
            total += counts[i] = at[i];
        at += COUNT(counts);
        size -= COUNT(counts);
        if (total > size || !huffman_make(&q->table[which >> 4][which & (TABLES - 1)],
                                          which < 0x10, counts, at))
            return false;
        at += total;
        size -= total;
    }
    return at;
}

static bool read_interval(struct quick *q)
{
    int64_t size;
    const uint8_t *at = segment_content(q, &size);
    if (!at || size != 2)
        return false;
    q->interval = at[0] << 8 | at[1];
    return true;
}

static const struct huffman *table_named(const struct quick *q, int ac, int number)
{
    return number < TABLES && q->table[ac][number].made ? &q->table[ac][number] : NULL;
}

/* Every bit comes once, from high to low, and DC before AC. */
static bool band_is_next(const struct jpeg_scan *s)
{
    if (s->last >= AREA || s->first > s->last || s->low > MOST_LOW ||
        (s->high && s->low != s->high - 1))
        return false;
    if (s->progressive && (s->first ? s->parts > 1 : s->last > 0))
        return false;
    for (int i = 0; i < s->parts; i++) {
        int8_t *known = s->part[i]->known;
        if (s->first && known[0] == UNKNOWN)
            return false;
        for (int k = s->first; k <= s->last; k++) {
            if (known[k] != (s->high ? s->high : UNKNOWN))
                return false;
            known[k] = (int8_t)s->low;
        }
    }
    return s->progressive || (s->last == AREA - 1 && !s->first && !s->high && !s->low);
}

/* The header of a scan, without its marker. */
static bool read_scan_header(struct quick *q)
{
    struct jpeg_scan *s = &q->scan;
    int64_t size;
    const uint8_t *at = segment_content(q, &size);
    if (!at || size < 1 || size != 2 * at[0] + 4)
        return false;
    if (at[0] < 1 || at[0] > q->frame->parts)
        return false;
    *s = (struct jpeg_scan){.clean = s->clean, .progressive = q->frame->progressive,
                            .interval = q->interval, .at = q->at, .end = q->end};
    s->parts = *at++;
    const uint8_t *band = at + 2 * s->parts;
    s->first = band[0];
    s->last = band[1];
    s->high = band[2] >> 4;
    s->low = band[2] & 15;
    for (int i = 0, n = 0; i < s->parts; i++, at += 2, n++) {
        while (n < q->frame->parts && q->frame->part[n].id != at[0])
            n++;
        if (n == q->frame->parts)
            return false;
        s->part[i] = &q->part[n];
        s->dc[i] = table_named(q, 0, at[1] >> 4);
        s->ac[i] = table_named(q, 1, at[1] & 15);
        if ((!s->first && !s->high && !s->dc[i]) || (s->last && !s->ac[i]))
            return false;
    }
    bool one = s->parts == 1;
    s->across = one ? s->part[0]->across : q->across;
    s->down = one ? s->part[0]->down : q->down;
    q->scans++;
    return band_is_next(s);
}

/* On to the next scan; *more is false at the end of the image. */
static bool read_markers(struct quick *q, bool *more)
{
    while (q->end - q->at >= 2 && q->at[0] == 0xff) {
        int marker = q->at[1];
        q->at += 2;
        *more = marker == SOS;
        if (marker == EOI)
            return true;
        if (marker == SOS)
            return read_scan_header(q);
        if (!(marker == DHT ? read_tables(q) : marker == DRI && read_interval(q)))
            return false;
    }
    return false;
}

/* ---- all of it ---- */

static bool read_scan(struct quick *q)
{
    struct jpeg_scan *s = &q->scan;
    bool ok = scan_begin(s);
    for (int row = 0; ok && row < s->down; row++)
        ok = scan_row(s, row);
    q->at = s->at;
    return ok && scan_end(s);
}

static bool all_known(const struct quick *q)
{
    for (int i = 0; i < q->frame->parts; i++)
        for (int k = 0; k < AREA; k++)
            if (q->part[i].known[k])
                return false;
    return true;
}

/* Several scans: all coefficients are there before the first row. */
static bool rows_of_scans(struct quick *q, const struct image_limits *limits,
                          struct jpeg_pixels *to)
{
    for (bool more = true; more;)
        if (q->scans > limits->scans || !read_scan(q) || !read_markers(q, &more))
            return false;
    if (!all_known(q))
        return false;
    for (int row = 0; row < q->down; row++)
        if (!pixels_row(to, row, row))
            return false;
    return true;
}

/* One scan of everything: a row of MCUs after the other. */
static bool rows_of_scan(struct quick *q, struct jpeg_pixels *to)
{
    struct jpeg_scan *s = &q->scan;
    if (!scan_begin(s))
        return false;
    for (int row = 0; row < q->down; row++) {
        for (int i = 0; i < s->parts; i++)
            memset(q->part[i].live, 0,
                   (size_t)(q->part[i].v * q->part[i].groups) * sizeof(uint64_t));
        if (!scan_row(s, 0) || !pixels_row(to, row, 0))
            return false;
    }
    q->at = s->at;
    bool more;
    return scan_end(s) && read_markers(q, &more) && !more;
}

bool jpeg_quick(struct arena *scratch, const struct jpeg_frame *f,
                const struct image_limits *limits, struct rows *to, int *given)
{
    struct quick *q = NEW(scratch, struct quick, 1);
    const uint8_t *file = (const uint8_t *)f->file.at;
    *given = 0;
    q->frame = f;
    q->interval = f->interval;
    q->at = file + f->scan;
    q->end = file + f->file.size;
    bool single = !f->progressive && file[f->scan + 2] == f->parts;
    if (!frame_is_common(f) || !tables_of_frame(q))
        return false;
    parts_place(q, !single);
    if (!parts_hold(q, scratch, f->progressive, limits->memory) || !read_scan_header(q))
        return false;
    struct jpeg_pixels *pixels = pixels_make(scratch, f, q->part, to);
    bool ok = single ? rows_of_scan(q, pixels) : rows_of_scans(q, limits, pixels);
    *given = pixels_given(pixels);
    return ok;
}
