/* table.c - the CPU device: its op table, and the two loops most of its ops run in. */
#include "kernels/cpu/cpu.h"

#define ENTRY(op) .op = narrow_##op,
const struct ops ops_cpu = {.name = "cpu", EACH_OP(ENTRY)};
#undef ENTRY

#define ONE(op) +1
_Static_assert(sizeof(struct ops) == (1 + (0 EACH_OP(ONE))) * sizeof(void (*)(void)),
               "EACH_OP names every member of struct ops");
#undef ONE

enum {
    SPAN = 16384,                       /* elements a block is worth */
    PARTS = 8,                          /* of the rows of a fold */
    FOLD_WIDTH = 512                    /* columns of a fold at a time */
};

struct span {
    void (*body)(void *arg, int64_t from, int64_t to);
    void *arg;
    int64_t rows, block;
};

static void span_block(void *arg, int64_t i)
{
    const struct span *p = arg;
    int64_t from = i * p->block;
    p->body(p->arg, from, MIN(from + p->block, p->rows));
}

void cpu_rows(struct stream *s, int64_t rows, int64_t cost,
              void (*body)(void *arg, int64_t from, int64_t to), void *arg)
{
    struct span p = {body, arg, rows, MAX(1, SPAN / MAX(1, cost))};
    team_for(s->team, blocks_of(rows, p.block), span_block, &p);
}

struct fold {
    void (*body)(void *arg, int64_t from, int64_t to, int64_t column, int64_t width,
                 float *const sum[2]);
    void *arg;
    int64_t rows, column, width;
    float part[PARTS][2][FOLD_WIDTH];
};

static void fold_part(void *arg, int64_t i)
{
    struct fold *p = arg;
    float *const sum[2] = {p->part[i][0], p->part[i][1]};
    memset(sum[0], 0, sizeof p->part[i]);
    p->body(p->arg, i * p->rows / PARTS, (i + 1) * p->rows / PARTS, p->column, p->width,
            sum);
}

static void fold_finish(const struct fold *p, int which, float beta, struct tensor out)
{
    if (!tensor_is(out))
        return;
    float *to = (float *)out.data + p->column;
    for (int64_t c = 0; c < p->width; c++) {
        float sum = 0;
        for (int i = 0; i < PARTS; i++)
            sum += p->part[i][which][c];
        to[c] = blend(beta, to[c], sum);
    }
}

void cpu_fold(struct stream *s, int64_t rows, int64_t columns,
              void (*body)(void *arg, int64_t from, int64_t to, int64_t column,
                           int64_t width, float *const sum[2]),
              void *arg, float beta, struct tensor out0, struct tensor out1)
{
    struct fold p = {.body = body, .arg = arg, .rows = rows};
    for (p.column = 0; p.column < columns; p.column += FOLD_WIDTH) {
        p.width = MIN(FOLD_WIDTH, columns - p.column);
        team_for(s->team, PARTS, fold_part, &p);
        fold_finish(&p, 0, beta, out0);
        fold_finish(&p, 1, beta, out1);
    }
}
