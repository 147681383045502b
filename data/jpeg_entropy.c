/* jpeg_entropy.c - the bits of a JPEG scan to coefficients.
 *
 * A segment is freed of its stuffed bytes first, so that reading bits asks nothing, and
 * its bytes are turned round, so that the next bit is the lowest: a row of correction
 * bits then lies in the order of the coefficients they are for.  What is irregular
 * spoils the reader, which is noticed after the MCU: blocks need no way out. */
#include "data/jpeg_quick.h"

#include <endian.h>
#ifdef __BMI2__
#include <immintrin.h>
#endif

/* The lowest bits of `bits`, each to the next place that `places` has. */
static inline uint64_t bits_spread(uint64_t bits, uint64_t places)
{
#ifdef __BMI2__
    return _pdep_u64(bits, places);
#else
    uint64_t to = 0;
    for (; places; places &= places - 1, bits >>= 1)
        to |= places & -places & -(bits & 1);
    return to;
#endif
}

/* The lowest n bits of 16, in the other order. */
static inline int bits_turned(uint64_t bits, int n)
{
    unsigned v = (unsigned)bits & 0xffff;
    v = (v & 0x5555) << 1 | (v >> 1 & 0x5555);
    v = (v & 0x3333) << 2 | (v >> 2 & 0x3333);
    v = (v & 0x0f0f) << 4 | (v >> 4 & 0x0f0f);
    v = (v & 0x00ff) << 8 | v >> 8;
    return (int)(v >> (16 - n));
}

/* ---- tables ---- */

static int extend(int bits, int size)
{
    return bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
}

/* Whatever begins with this code: with its value where that can be seen, too. */
static void fill_entries(struct huffman *h, int code, int length, int symbol)
{
    int size = symbol & 15, step = 1 << length;
    for (int i = bits_turned((uint64_t)code, length); i < 1 << LOOK; i += step) {
        int value = 0, drop = length;
        if (size && length + size <= LOOK) {
            value = extend(bits_turned((uint64_t)i >> length, size), size);
            drop += size;
        }
        h->entry[i] = (uint32_t)value << 16 | (uint32_t)symbol << 8 | (uint32_t)drop;
    }
}

bool huffman_make(struct huffman *h, bool dc, const uint8_t *counts,
                  const uint8_t *symbols)
{
    memset(h->entry, 0, sizeof h->entry);
    int code = 0, n = 0;
    for (int length = 1; length <= 16; length++) {
        h->offset[length] = n - code;
        for (int i = 0; i < counts[length]; i++, n++, code++) {
            if (n == COUNT(h->symbol) || (dc && symbols[n] > 15))
                return false;
            h->symbol[n] = symbols[n];
            if (length <= LOOK && code < 1 << length)
                fill_entries(h, code, length, symbols[n]);
        }
        if (code >= 1 << length)        /* too many, or a code of ones alone */
            return false;
        h->limit[length] = (uint32_t)code << (16 - length);
        code <<= 1;
    }
    h->made = true;
    return true;
}

/* ---- bits ---- */

/* The reader may be AHEAD bytes before what it has used.  Behind a segment are zeros
 * for more than an MCU can take: 6 blocks of 64 symbols of up to 31 bits. */
enum { AHEAD = sizeof(uint64_t), SLACK = 2048 };

size_t scan_room(int64_t file_size)
{
    return (size_t)file_size + SLACK;
}

/* Copies a segment without its stuffed bytes; false if no marker ends it. */
static bool segment_open(struct jpeg_scan *s)
{
    uint8_t *to = s->clean;
    for (;;) {
        const uint8_t *ff = memchr(s->at, 0xff, (size_t)(s->end - s->at));
        if (!ff || ff + 1 == s->end)
            return false;
        size_t n = (size_t)(ff - s->at);
        memcpy(to, s->at, n);
        to += n;
        s->at = ff;
        if (ff[1])
            break;
        *to++ = 0xff;
        s->at += 2;
    }
    memset(to, 0, SLACK);
    s->clean_end = to;
    for (uint8_t *turn = s->clean; turn < to; turn++) {
        uint8_t v = *turn;
        v = (uint8_t)((v & 0x55) << 1 | (v >> 1 & 0x55));
        v = (uint8_t)((v & 0x33) << 2 | (v >> 2 & 0x33));
        *turn = (uint8_t)(v << 4 | v >> 4);
    }
    s->bits = (struct bits){.at = s->clean, .stop = to + AHEAD};
    memset(s->before, 0, sizeof s->before);
    s->run = 0;
    s->left = s->interval;
    return true;
}

/* Nothing but the padding of the last byte is left. */
static bool segment_done(const struct jpeg_scan *s)
{
    int64_t left = 8 * (s->clean_end - s->bits.at) + s->bits.left;
    return left >= 0 && left < 8;
}

/* At least 56 bits. */
static inline void bits_fill(struct bits *b)
{
    uint64_t next;
    memcpy(&next, b->at, sizeof next);
    b->word |= le64toh(next) << b->left;
    b->at += (63 - b->left) >> 3;
    b->left |= 56;
}

static inline void bits_drop(struct bits *b, int n)
{
    b->word >>= n;
    b->left -= n;
}

static inline int bits_number(struct bits *b, int n)    /* 1 to 16 */
{
    int number = bits_turned(b->word, 16) >> (16 - n);
    bits_drop(b, n);
    return number;
}

static inline void bits_spoil(struct bits *b)
{
    b->at = b->stop + 1;
}

/* An entry for a code that the table does not hold; 0 if there is none. */
static uint32_t entry_long(const struct huffman *h, uint64_t word)
{
    uint32_t next = (uint32_t)bits_turned(word, 16);
    for (int length = LOOK + 1; length <= 16; length++)
        if (next < h->limit[length]) {
            int at = h->offset[length] + (int)(next >> (16 - length));
            return (uint32_t)h->symbol[at] << 8 | (uint32_t)length;
        }
    return 0;
}

/* The next symbol.  What comes back is the value that its low half announces, or 0; a
 * value with `low` bits to come must fit 16 bits. */
static inline int symbol_next(struct bits *b, const struct huffman *h, int low,
                              int *symbol)
{
    bits_fill(b);
    uint32_t e = h->entry[b->word & ((1 << LOOK) - 1)];
    if (!(e & 0xff)) {
        e = entry_long(h, b->word);
        if (!e)
            bits_spoil(b);
    }
    bits_drop(b, (int)(e & 0xff));
    *symbol = (int)(e >> 8 & 0xff);
    int value = (int32_t)e >> 16, size = *symbol & 15;
    if (value || !size)
        return value;
    if (size + low > 15)
        bits_spoil(b);
    return extend(bits_number(b, size), size);
}

/* ---- blocks ---- */

enum { ZEROS = 0xf0 };                  /* the symbol for 16 of them */

struct block {
    int16_t *lines;                     /* [AREA, LANES] of its group */
    uint64_t *live;
    int lane;
};

static inline struct block block_at(const struct jpeg_part *p, int row, int column)
{
    size_t group = (size_t)row * (size_t)p->groups + (size_t)(column / LANES);
    return (struct block){p->coefficients + group * AREA * LANES, p->live + group,
                          column % LANES};
}

/* Lines are cleared when they first hold something. */
static inline int16_t *block_line(struct block at, int k)
{
    int16_t *line = at.lines + k * LANES;
    if (!(*at.live >> k & 1)) {
        memset(line, 0, LANES * sizeof *line);
        *at.live |= (uint64_t)1 << k;
    }
    return line + at.lane;
}

static inline void block_dc(struct jpeg_scan *s, struct bits *b, int i, struct block at)
{
    int symbol;
    s->before[i] += symbol_next(b, s->dc[i], s->low, &symbol);
    int value = s->before[i] * (1 << s->low);
    if (value != (int16_t)value) {
        bits_spoil(b);
        s->before[i] = 0;
    }
    *block_line(at, 0) = (int16_t)value;
}

static inline void block_whole(struct jpeg_scan *s, struct bits *b, int i,
                               struct block at)
{
    block_dc(s, b, i, at);
    const struct huffman *h = s->ac[i];
    int k = 1;
    while (k < AREA) {
        int symbol, value = symbol_next(b, h, 0, &symbol);
        if (!value && symbol != ZEROS)
            return;
        k += symbol >> 4;
        if (k >= AREA) {
            bits_spoil(b);
            return;
        }
        if (value)
            *block_line(at, k) = (int16_t)value;
        k++;
    }
}

static inline void block_dc_bit(struct jpeg_scan *s, struct bits *b, struct block at)
{
    bits_fill(b);
    int16_t *dc = block_line(at, 0);
    *dc = (int16_t)(*dc | (int)(b->word & 1) << s->low);
    bits_drop(b, 1);
}

/* The band of a progressive block: the high bits of its values.  What comes back is
 * how many blocks, this one included, end here. */
static inline int block_band(const struct jpeg_scan *s, struct bits *b, struct block at,
                             uint64_t *nonzero)
{
    const struct huffman *h = s->ac[0];
    int k = s->first, last = s->last, low = s->low;
    while (k <= last) {
        int symbol, value = symbol_next(b, h, low, &symbol), zeros = symbol >> 4;
        if (!value && symbol != ZEROS)
            return (1 << zeros) + (zeros ? bits_number(b, zeros) : 0);
        k += zeros;
        if (k > last) {
            bits_spoil(b);
            break;
        }
        if (value) {
            *block_line(at, k) = (int16_t)(value * (1 << low));
            *nonzero |= (uint64_t)1 << k;
        }
        k++;
    }
    return 0;
}

/* Bits for each of these coefficients, the next bit for the lowest.  At least HALF are
 * there already. */
static inline uint64_t bits_for(struct bits *b, uint64_t these)
{
    enum { HALF = AREA / 2 };
    uint64_t set = 0, early = these & (((uint64_t)1 << HALF) - 1);
    int n = __builtin_popcountll(these);
    if (n > HALF) {
        set = bits_spread(b->word, early);
        n -= __builtin_popcountll(early);
        bits_drop(b, __builtin_popcountll(early));
        bits_fill(b);
        these &= ~early;
    }
    set |= bits_spread(b->word, these);
    bits_drop(b, n);
    return set;
}

/* These coefficients of a block move one unit away from zero. */
static inline void block_grow(struct block at, int unit, uint64_t these)
{
    for (; these; these &= these - 1) {
        int16_t *value = at.lines + __builtin_ctzll(these) * LANES + at.lane;
        *value = (int16_t)(*value + (*value < 0 ? -unit : unit));
    }
}

static inline uint64_t from_bit(int k)                  /* bits k and up; none for 64 */
{
    return k < AREA ? ~(uint64_t)0 << k : 0;
}

/* The band of a progressive block: one bit more, for the values that are not zero and
 * for those that begin with it.  What comes back is how many blocks, this one included,
 * have no more that begin. */
static inline int block_refine(struct bits *b, struct block at, const struct huffman *h,
                               int low, uint64_t band, uint64_t *nonzero)
{
    uint64_t old = *nonzero & band, left = band, grown = 0;
    int run = 0;
    while (left) {
        int symbol, value = symbol_next(b, h, 0, &symbol), zeros = symbol >> 4;
        if (!value && symbol != ZEROS) {
            run = 1 << zeros;
            if (zeros)
                run += bits_number(b, zeros);
            break;
        }
        uint64_t to = bits_spread((uint64_t)1 << zeros, left & ~old);
        if (!to || (value && (symbol & 15) != 1)) {
            bits_spoil(b);
            break;
        }
        grown |= bits_for(b, left & old & (to - 1));
        left &= ~(to | (to - 1));
        if (value) {
            *block_line(at, __builtin_ctzll(to)) = (int16_t)(value * (1 << low));
            *nonzero |= to;
        }
    }
    if (run) {
        bits_fill(b);
        grown |= bits_for(b, left & old);
    }
    block_grow(at, 1 << low, grown);
    return run;
}

/* ---- rows of MCUs ---- */

/* What a scan of several parts brings. */
enum step { WHOLE, DC, DC_BIT };

/* `count` MCUs of a row, of several parts or of one block each. */
static inline void run_mcus(struct jpeg_scan *s, enum step step, int row, int column,
                            int count)
{
    struct bits b = s->bits;
    for (int x = column; x < column + count && b.at <= b.stop; x++)
        for (int i = 0; i < s->parts; i++) {
            const struct jpeg_part *p = s->part[i];
            int h = s->parts > 1 ? p->h : 1, v = s->parts > 1 ? p->v : 1;
            for (int y = 0; y < v; y++)
                for (int z = 0; z < h; z++) {
                    struct block at = block_at(p, row * v + y, x * h + z);
                    if (step == WHOLE)
                        block_whole(s, &b, i, at);
                    else if (step == DC)
                        block_dc(s, &b, i, at);
                    else
                        block_dc_bit(s, &b, at);
                }
        }
    s->bits = b;
}

static void run_band(struct jpeg_scan *s, int row, int column, int count)
{
    struct bits b = s->bits;
    const struct jpeg_part *p = s->part[0];
    uint64_t *nonzero = p->nonzero + (size_t)row * (size_t)p->groups * LANES;
    for (int x = column, end = column + count; x < end && b.at <= b.stop; x++) {
        if (!s->run)
            s->run = block_band(s, &b, block_at(p, row, x), nonzero + x);
        int ended = MIN(s->run, end - x);
        s->run -= ended;
        x += MAX(ended - 1, 0);
    }
    s->bits = b;
}

static void run_refine(struct jpeg_scan *s, int row, int column, int count)
{
    struct bits b = s->bits;
    const struct jpeg_part *p = s->part[0];
    const struct huffman *h = s->ac[0];
    uint64_t *nonzero = p->nonzero + (size_t)row * (size_t)p->groups * LANES;
    uint64_t band = from_bit(s->first) & ~from_bit(s->last + 1);
    int low = s->low, run = s->run;
    for (int x = column, end = column + count; x < end && b.at <= b.stop; x++) {
        struct block at = block_at(p, row, x);
        if (run) {
            bits_fill(&b);
            block_grow(at, 1 << low, bits_for(&b, nonzero[x] & band));
        } else {
            run = block_refine(&b, at, h, low, band, nonzero + x);
        }
        run -= run > 0;
    }
    s->bits = b;
    s->run = run;
}

static void run(struct jpeg_scan *s, int row, int column, int count)
{
    if (!s->progressive)
        run_mcus(s, WHOLE, row, column, count);
    else if (!s->first && !s->high)
        run_mcus(s, DC, row, column, count);
    else if (!s->first)
        run_mcus(s, DC_BIT, row, column, count);
    else if (!s->high)
        run_band(s, row, column, count);
    else
        run_refine(s, row, column, count);
}

bool scan_begin(struct jpeg_scan *s)
{
    s->restarts = 0;
    return segment_open(s);
}

static bool segment_next(struct jpeg_scan *s)
{
    if (!segment_done(s) || s->at[1] != 0xd0 + s->restarts % 8)
        return false;
    s->restarts++;
    s->at += 2;
    return segment_open(s);
}

bool scan_row(struct jpeg_scan *s, int row)
{
    for (int x = 0; x < s->across;) {
        int count = s->across - x;
        if (s->interval) {
            if (!s->left && !segment_next(s))
                return false;
            count = MIN(count, s->left);
            s->left -= count;
        }
        run(s, row, x, count);
        if (s->bits.at > s->bits.stop)
            return false;
        x += count;
    }
    return true;
}

bool scan_end(struct jpeg_scan *s)
{
    return segment_done(s);
}
