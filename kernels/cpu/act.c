/* act.c - activations on the CPU: SwiGLU, both forms of GELU, rows behind a gate.
 *
 * The tanh form is x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3), because
 * 1 + tanh u = 2 sigmoid(2 u): nothing cancels for negative x. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

static const float twice_root = 1.59576912f;            /* 2 sqrt(2 / pi) */
static const float cubic = 0.044715f;

struct act {
    struct tensor x, dy, y;
    bool exact;
    float beta;
};

enum { COST = 4 };                      /* an element is worth this many plain ones */

static void swiglu_rows(void *arg, int64_t from, int64_t to)
{
    const struct act *p = arg;
    int64_t width = p->y.dim[1];
    for (int64_t t = from; t < to; t++) {
        const float *g = row(p->x, t), *u = g + width;
        float *y = row(p->y, t);
        INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            y[c] = g[c] * sigmoid_f32(g[c]) * u[c];
    }
}

void cpu_swiglu(struct stream *s, struct tensor gu, struct tensor y)
{
    struct act p = {.x = gu, .y = y};
    cpu_rows(s, y.dim[0], COST * y.dim[1], swiglu_rows, &p);
}

static void swiglu_back_rows(void *arg, int64_t from, int64_t to)
{
    const struct act *p = arg;
    int64_t width = p->dy.dim[1];
    float beta = p->beta;
    for (int64_t t = from; t < to; t++) {
        const float *g = row(p->x, t), *u = g + width, *dy = row(p->dy, t);
        float *dg = row(p->y, t), *du = dg + width;
        if (beta == 0) {
            INDEPENDENT
            for (int64_t c = 0; c < width; c++) {
                float z = sigmoid_f32(g[c]), d = dy[c];
                dg[c] = d * u[c] * (z * (1 + g[c] * (1 - z)));
                du[c] = d * (g[c] * z);
            }
            continue;
        }
        INDEPENDENT
        for (int64_t c = 0; c < width; c++) {
            float z = sigmoid_f32(g[c]), d = dy[c];
            dg[c] = beta * dg[c] + d * u[c] * (z * (1 + g[c] * (1 - z)));
            du[c] = beta * du[c] + d * (g[c] * z);
        }
    }
}

void cpu_swiglu_back(struct stream *s, struct tensor gu, struct tensor dy, float beta,
                     struct tensor dgu)
{
    struct act p = {.x = gu, .dy = dy, .beta = beta, .y = dgu};
    cpu_rows(s, dy.dim[0], COST * dgu.dim[1], swiglu_back_rows, &p);
}

static void gelu_rows(void *arg, int64_t from, int64_t to)
{
    const struct act *p = arg;
    int64_t width = p->y.dim[1];
    for (int64_t t = from; t < to; t++) {
        const float *x = row(p->x, t);
        float *y = row(p->y, t);
        if (p->exact) {
            INDEPENDENT
            for (int64_t c = 0; c < width; c++)
                y[c] = x[c] * normal_f32(x[c]);
            continue;
        }
        INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            y[c] = x[c] * sigmoid_f32(twice_root * (x[c] + cubic * x[c] * x[c] * x[c]));
    }
}

void cpu_gelu(struct stream *s, struct tensor x, bool exact, struct tensor y)
{
    struct act p = {.x = x, .exact = exact, .y = y};
    cpu_rows(s, y.dim[0], COST * y.dim[1], gelu_rows, &p);
}

static inline float gelu_slope_exact(float x)
{
    return normal_f32(x) + x * density_f32(x);
}

static inline float gelu_slope_tanh(float x)
{
    float z = sigmoid_f32(twice_root * (x + cubic * x * x * x));
    return z + x * z * (1 - z) * (twice_root * (1 + 3 * cubic * x * x));
}

static void gelu_back_rows(void *arg, int64_t from, int64_t to)
{
    const struct act *p = arg;
    int64_t width = p->y.dim[1];
    for (int64_t t = from; t < to; t++) {
        const float *x = row(p->x, t), *dy = row(p->dy, t);
        float *dx = row(p->y, t), beta = p->beta;
        float slope[256];
        for (int64_t c = 0; c < width; c += COUNT(slope)) {
            int64_t n = MIN(COUNT(slope), width - c);
            if (p->exact)
                for (int64_t j = 0; j < n; j++)
                    slope[j] = gelu_slope_exact(x[c + j]);
            else
                for (int64_t j = 0; j < n; j++)
                    slope[j] = gelu_slope_tanh(x[c + j]);
            for (int64_t j = 0; j < n; j++)
                dx[c + j] = blend(beta, dx[c + j], dy[c + j] * slope[j]);
        }
    }
}

void cpu_gelu_back(struct stream *s, struct tensor x, bool exact, struct tensor dy,
                   float beta, struct tensor dx)
{
    struct act p = {.x = x, .exact = exact, .dy = dy, .beta = beta, .y = dx};
    cpu_rows(s, dx.dim[0], COST * dx.dim[1], gelu_back_rows, &p);
}

/* ---- rows behind a gate ---- */

struct gate {
    struct tensor a, x, z, dy, y, dz;
    float beta_x, beta_z;
};

static void gate_rows(void *arg, int64_t from, int64_t to)
{
    const struct gate *p = arg;
    int64_t width = p->y.dim[1];
    for (int64_t t = from; t < to; t++) {
        const float *a = row(p->a, t), *x = row(p->x, t);
        float *y = row(p->y, t), open = sigmoid_f32(*row(p->z, t));
        INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            y[c] = a[c] + open * x[c];
    }
}

void cpu_gate(struct stream *s, struct tensor a, struct tensor x, struct tensor z,
              struct tensor y)
{
    struct gate p = {.a = a, .x = x, .z = z, .y = y};
    cpu_rows(s, y.dim[0], y.dim[1], gate_rows, &p);
}

static void gate_back_rows(void *arg, int64_t from, int64_t to)
{
    const struct gate *p = arg;
    int64_t width = p->dy.dim[1];
    for (int64_t t = from; t < to; t++) {
        const float *dy = row(p->dy, t);
        float open = sigmoid_f32(*row(p->z, t));
        if (tensor_is(p->dz)) {
            float slope = open * (1 - open) * row_dot(dy, row(p->x, t), width);
            *row(p->dz, t) = blend(p->beta_z, *row(p->dz, t), slope);
        }
        float *dx = tensor_is(p->y) ? row(p->y, t) : NULL;
        for (int64_t c = 0; c < width && dx; c++)
            dx[c] = blend(p->beta_x, dx[c], open * dy[c]);
    }
}

void cpu_gate_back(struct stream *s, struct tensor x, struct tensor z, struct tensor dy,
                   float beta_x, struct tensor dx, float beta_z, struct tensor dz)
{
    struct gate p = {.x = x, .z = z, .dy = dy, .y = dx, .dz = dz, .beta_x = beta_x,
                     .beta_z = beta_z};
    cpu_rows(s, dy.dim[0], dy.dim[1], gate_back_rows, &p);
}
