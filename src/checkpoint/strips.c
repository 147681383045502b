/* strips.c - walks a part of a param in the order of the file; nothing moves here. */
#include "checkpoint/strips.h"

static int64_t last_size(const struct box *b)
{
    return b->size[b->ndim - 1];
}

/* Row of the whole tensor in memory, of a row of the box. */
static int64_t row_global(const struct box *b, int64_t row)
{
    return box_global(b, row * last_size(b)) / b->dim[b->ndim - 1];
}

/* Rows from s->row on that lie beside each other in one matrix: columns on disk. */
static void block_find(struct strips *s)
{
    const struct box *b = &s->param->box;
    int64_t cols = s->param->dim[2], rows = (s->part.to - 1) / last_size(b) + 1;
    int64_t first = row_global(b, s->row);
    s->column = 0;
    for (s->end = s->row + 1; s->end < rows; s->end++) {
        int64_t next = row_global(b, s->end);
        if (next != first + s->end - s->row || next / cols != first / cols)
            break;
    }
}

struct strips strips_of(const struct param *p, bool swapped, struct stretch part)
{
    struct strips s = {.param = p, .part = part, .swapped = swapped, .at = part.from};
    REQUIRE(p->transposed || !swapped);
    REQUIRE(part.from <= part.to && part.to <= box_count(&p->box));
    if (swapped && part.from < part.to) {
        s.row = part.from / last_size(&p->box);
        block_find(&s);
    }
    return s;
}

static bool plain_next(struct strips *s, struct strip *out)
{
    const struct box *b = &s->param->box;
    int64_t row = box_row(b), left = s->part.to - s->at;
    if (left == 0)
        return false;
    *out = (struct strip){box_global(b, s->at), MIN(left, row - s->at % row),
                          s->at - s->part.from, 1};
    s->at += out->count;
    return true;
}

/* One column of the block: a row on disk.  The part may begin and end inside a row. */
static bool swapped_next(struct strips *s, struct strip *out)
{
    const struct box *b = &s->param->box;
    int64_t last = last_size(b), rows = s->param->dim[1], cols = s->param->dim[2];
    while (s->row * last < s->part.to) {
        if (s->column == last) {
            s->row = s->end;
            if (s->row * last < s->part.to)
                block_find(s);
            continue;
        }
        int64_t i = s->column++;
        int64_t from = s->row + (s->row * last + i < s->part.from);
        int64_t to = s->end - ((s->end - 1) * last + i >= s->part.to);
        if (from >= to)
            continue;
        int64_t global = row_global(b, from);
        int64_t disk = (global / cols * rows + b->from[b->ndim - 1] + i) * cols;
        *out = (struct strip){disk + global % cols, to - from,
                              from * last + i - s->part.from, last};
        return true;
    }
    return false;
}

bool strips_next(struct strips *s, struct strip *out)
{
    if (s->part.from == s->part.to)
        return false;
    return s->swapped ? swapped_next(s, out) : plain_next(s, out);
}

bool strips_panel(struct strips *s, struct panel *out)
{
    struct strip last;
    if (!strips_next(s, &last))
        return false;
    *out = (struct panel){.first = last, .rows = 1};
    struct strips ahead = *s;
    for (struct strip x; last.step != 1 && out->rows < PANEL_ROWS &&
                         strips_next(&ahead, &x);) {
        int64_t stride = x.disk - last.disk;
        if (x.count != last.count || x.step != last.step ||
            x.memory != last.memory + 1 || (out->rows > 1 && stride != out->stride))
            break;
        out->stride = stride;
        out->rows++;
        last = x;
        *s = ahead;
    }
    return true;
}

void tile_to_memory(const struct tile *t, int64_t rows, int64_t columns, float *to,
                    int64_t step)
{
    for (int64_t c = 0; c < columns; c++, to += step)
        for (int64_t r = 0; r < rows; r++)
            to[r] = t->at[r][c];
}

void tile_from_memory(struct tile *t, int64_t rows, int64_t columns, const float *from,
                      int64_t step)
{
    for (int64_t c = 0; c < columns; c++, from += step)
        for (int64_t r = 0; r < rows; r++)
            t->at[r][c] = from[r];
}
