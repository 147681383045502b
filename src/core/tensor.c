/* tensor.c - making views and narrowing them; no data is touched here. */
#include "core/tensor.h"

struct tensor tensor_dense(void *data, enum dtype d, int ndim, const int64_t *dim)
{
    REQUIRE(ndim >= 1 && ndim <= 4);
    struct tensor t = {.data = data, .dtype = d, .ndim = ndim};
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        REQUIRE(dim[i] >= 0);
        t.dim[i] = dim[i];
        t.stride[i] = stride;
        stride *= dim[i];
    }
    return t;
}

struct tensor tensor_1d(void *data, enum dtype d, int64_t n)
{
    return tensor_dense(data, d, 1, (int64_t[]){n});
}

struct tensor tensor_2d(void *data, enum dtype d, int64_t rows, int64_t cols)
{
    return tensor_dense(data, d, 2, (int64_t[]){rows, cols});
}

struct tensor tensor_3d(void *data, enum dtype d, int64_t a, int64_t b, int64_t c)
{
    return tensor_dense(data, d, 3, (int64_t[]){a, b, c});
}

int64_t tensor_count(struct tensor t)
{
    int64_t count = t.ndim > 0;
    for (int i = 0; i < t.ndim; i++)
        count *= t.dim[i];
    return count;
}

bool tensor_is_dense(struct tensor t)
{
    if (tensor_count(t) == 0)
        return true;
    int64_t stride = 1;
    for (int i = t.ndim - 1; i >= 0; i--) {
        if (t.dim[i] != 1 && t.stride[i] != stride)
            return false;
        stride *= t.dim[i];
    }
    return true;
}

/* Indices [from, from + count) of dimension i. */
static struct tensor narrow(struct tensor t, int i, int64_t from, int64_t count)
{
    if (from < 0 || count < 0 || from > t.dim[i] - count)
        BUG("[%lld, +%lld) of dimension %d of %s", (long long)from, (long long)count, i,
            tensor_text(t));
    t.dim[i] = count;
    if (t.data)
        t.data = (char *)t.data + from * t.stride[i] * dtype_bytes(t.dtype);
    return t;
}

struct tensor tensor_columns(struct tensor t, int64_t from, int64_t count)
{
    REQUIRE(t.ndim > 0);
    return narrow(t, t.ndim - 1, from, count);
}

struct tensor tensor_rows(struct tensor t, int64_t from, int64_t count)
{
    REQUIRE(t.ndim > 0);
    t = narrow(t, 0, from, count);
    t.live = NULL;
    return t;
}

struct tensor tensor_reshape(struct tensor t, int ndim, const int64_t *dim)
{
    struct tensor to = tensor_dense(t.data, t.dtype, ndim, dim);
    if (!tensor_is_dense(t) || tensor_count(to) != tensor_count(t))
        BUG("%s%s reshaped to %s", tensor_is_dense(t) ? "" : "strided ", tensor_text(t),
            tensor_text(to));
    return to;
}

struct tensor tensor_as_2d(struct tensor t, int64_t rows, int64_t cols)
{
    return tensor_reshape(t, 2, (int64_t[]){rows, cols});
}

struct tensor tensor_live(struct tensor t, struct tensor bound, int64_t per)
{
    REQUIRE(per > 0);
    t.live = NULL;
    t.per = per;
    if (bound.data) {
        REQUIRE(bound.dtype == DTYPE_I32 && bound.ndim == 1 && bound.dim[0] > 0);
        t.live = (const int32_t *)bound.data + bound.dim[0] - 1;
    }
    return t;
}

const char *tensor_text(struct tensor t)
{
    static _Thread_local char buffers[8][128];
    static _Thread_local unsigned next;
    char *text = buffers[next++ % COUNT(buffers)];
    int room = sizeof buffers[0];
    if (t.ndim == 0)
        return "none";
    int n = snprintf(text, (size_t)room, "%s[", dtype_name[t.dtype]);
    for (int i = 0; i < t.ndim; i++)
        n += snprintf(text + n, (size_t)(room - n), "%s%lld", i ? "," : "",
                      (long long)t.dim[i]);
    snprintf(text + n, (size_t)(room - n), "]");
    return text;
}
