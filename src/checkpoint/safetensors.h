/* safetensors.h - the file format of weights: 8 bytes of size, a JSON header, data.
 *
 * Reading maps the file and checks every promise of the format: sizes, ranges, types,
 * overlaps.  Writing streams tensor after tensor: no file is ever whole in memory. */
#ifndef CHECKPOINT_SAFETENSORS_H
#define CHECKPOINT_SAFETENSORS_H

#include "base/file.h"
#include "core/dtype.h"

enum { MAX_DISK_DIMS = 8 };

struct disk_tensor {
    const char *name;
    enum dtype dtype;
    int ndim;
    int64_t dim[MAX_DISK_DIMS];
    int64_t count, bytes;
    const void *data;                   /* into the mapping; unaligned */
    const char *other;                  /* a type that only carries: its name (dtype is
                                         * then DTYPE_U8, bytes what the file says) */
};

struct safetensors {
    const char *path;
    struct bytes map;
    int64_t count;
    struct disk_tensor *tensor;         /* in the order of their data */
    int64_t nmeta;
    const char **meta;                  /* key, value, key, value, ... */
};

MUST_USE bool safetensors_open(struct arena *a, const char *path,
                               struct safetensors *out);
/* From memory; `name` is for messages.  (Also the fuzzing entry.) */
MUST_USE bool safetensors_parse(struct arena *a, const char *name, struct bytes file,
                                struct safetensors *out);
void safetensors_close(struct safetensors *s);
const struct disk_tensor *safetensors_find(const struct safetensors *s,
                                           const char *name);
/* Or NULL. */
const char *safetensors_meta(const struct safetensors *s, const char *key);

/* How a file of these tensors (data ignored) begins, padded: their data follow in that
 * order. */
struct bytes safetensors_head(struct arena *a, const struct disk_tensor *tensor,
                              int64_t count, const char *const *meta, int64_t nmeta);
/* Announce all tensors (data ignored), then give each one's bytes in that order. */
struct safetensors_writer;
MUST_USE bool safetensors_create(struct arena *a, const char *path,
                                 const struct disk_tensor *tensor, int64_t count,
                                 const char *const *meta, int64_t nmeta,
                                 struct safetensors_writer **out);
MUST_USE bool safetensors_write(struct safetensors_writer *w, const void *data,
                                int64_t bytes);
/* Synced and read again, it takes its place; where it cannot, nothing changes there. */
MUST_USE bool safetensors_finish(struct safetensors_writer *w);
void safetensors_abandon(struct safetensors_writer *w);              /* close, remove */

int64_t disk_count(int ndim, const int64_t *dim);       /* product; -1: too large */
/* "BF16 [8, 16]" in the arena, for messages. */
const char *disk_text(struct arena *a, const char *type, int ndim, const int64_t *dim);
const char *disk_type(const struct disk_tensor *t);     /* "BF16" */

#endif
