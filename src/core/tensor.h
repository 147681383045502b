/* tensor.h - a view of device memory: by value, owning nothing.
 *
 * Up to four dimensions, outermost first; strides count elements and the last
 * dimension is contiguous, so a column slice of a fused buffer is a view too.
 * An absent tensor has data NULL and ndim 0 (see tensor_none). */
#ifndef CORE_TENSOR_H
#define CORE_TENSOR_H

#include "core/dtype.h"

struct tensor {
    void *data;
    enum dtype dtype;
    int ndim;
    bool room;                          /* rows are room for what data sends: how many
                                         * of them move is no business of a shape */
    int64_t dim[4], stride[4];
    const int32_t *live;                /* device memory, or NULL: rows at and past
                                         * *live / per are padding */
    int64_t per;
};

static inline struct tensor tensor_none(void)
{
    return (struct tensor){.dtype = DTYPE_F32};
}

static inline bool tensor_is(struct tensor t)           /* is it there? */
{
    return t.ndim > 0;
}

/* Dense views.  Data may be NULL on the dry device. */
struct tensor tensor_1d(void *data, enum dtype d, int64_t n);
struct tensor tensor_2d(void *data, enum dtype d, int64_t rows, int64_t cols);
struct tensor tensor_3d(void *data, enum dtype d, int64_t a, int64_t b, int64_t c);
struct tensor tensor_dense(void *data, enum dtype d, int ndim, const int64_t *dim);
int64_t tensor_count(struct tensor t);                  /* elements */
bool tensor_is_dense(struct tensor t);
/* Columns [from, from + count) of the last dimension. */
struct tensor tensor_columns(struct tensor t, int64_t from, int64_t count);
/* Rows [from, from + count) of the first dimension. */
struct tensor tensor_rows(struct tensor t, int64_t from, int64_t count);
/* The same elements under other dimensions; the tensor must be dense. */
struct tensor tensor_reshape(struct tensor t, int ndim, const int64_t *dim);
/* A dense [T, D] seen as [rows, cols] with the same count. */
struct tensor tensor_as_2d(struct tensor t, int64_t rows, int64_t cols);
/* The same, of whose rows as many are live as the last element of `bound` counts (i32
 * list; absent: all), `per` of what is counted to a row.  Views of columns keep that,
 * of rows and of other dimensions do not. */
struct tensor tensor_live(struct tensor t, struct tensor bound, int64_t per);
/* "f32[128,64]" in one of a few per-thread buffers, for messages. */
const char *tensor_text(struct tensor t);

#endif
