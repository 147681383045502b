/* rope.c - rotary positions on the CPU: the table of cosines, and the rotation. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { PAIRS = 256 };                   /* K / 2, at most */

struct rope {
    struct tensor position, cos, sin, x, y;
    int64_t heads, half;
    float beta, sign;
    int axis[PAIRS];
    float frequency[PAIRS];
};

static void rope_table_rows(void *arg, int64_t from, int64_t to)
{
    const struct rope *p = arg;
    for (int64_t t = from; t < to; t++) {
        const int32_t *at = row_i32(p->position, t);
        for (int64_t j = 0; j < p->half; j++) {
            float angle = (float)at[p->axis[j]] * p->frequency[j];
            row(p->cos, t)[j] = cosf(angle);
            row(p->sin, t)[j] = sinf(angle);
        }
    }
}

/* Frequencies as the reference has them: 1 / theta^(2j/K), rounded to f32. */
void cpu_rope_table(struct stream *s, struct tensor position, struct rope_shape shape,
                    struct tensor cos, struct tensor sin)
{
    struct rope p = {.position = position, .cos = cos, .sin = sin, .half = cos.dim[1]};
    REQUIRE(p.half <= PAIRS);
    for (int j = 0; j < p.half; j++) {
        int quarter = (int)p.half / 2;
        int i = shape.axial ? 2 * (j % quarter) : j;
        p.frequency[j] = (float)(1 / pow(shape.theta, 2.0 * i / shape.heads_width));
        if (shape.axial)
            p.axis[j] = j / quarter;
        else if (j % 3 != 0 && j < 3 * shape.section[j % 3])
            p.axis[j] = j % 3;
    }
    cpu_rows(s, cos.dim[0], 32 * p.half, rope_table_rows, &p);
}

static void rope_rows(void *arg, int64_t from, int64_t to)
{
    const struct rope *p = arg;
    int64_t half = p->half;
    float sign = p->sign, beta = p->beta;
    for (int64_t t = from; t < to; t++) {
        const float *c = row(p->cos, t), *s = row(p->sin, t);
        for (int64_t h = 0; h < p->heads; h++) {
            const float *x = row(p->x, t) + 2 * h * half;
            float *y = row(p->y, t) + 2 * h * half;
            if (beta == 0) {
                INDEPENDENT
                for (int64_t j = 0; j < half; j++) {
                    float a = x[j], b = x[j + half];
                    y[j] = a * c[j] - b * s[j] * sign;
                    y[j + half] = b * c[j] + a * s[j] * sign;
                }
                continue;
            }
            INDEPENDENT
            for (int64_t j = 0; j < half; j++) {
                float a = x[j], b = x[j + half];
                y[j] = beta * y[j] + (a * c[j] - b * s[j] * sign);
                y[j + half] = beta * y[j + half] + (b * c[j] + a * s[j] * sign);
            }
        }
    }
}

void cpu_rope(struct stream *s, struct tensor x, struct tensor cos, struct tensor sin,
              int direction, float beta, struct tensor y)
{
    struct rope p = {.x = x, .cos = cos, .sin = sin, .y = y, .beta = beta,
                     .sign = (float)direction, .half = cos.dim[1],
                     .heads = x.dim[1] / (2 * cos.dim[1])};
    cpu_rows(s, x.dim[0], x.dim[1], rope_rows, &p);
}
