/* hf_parts.h - what reading (hf.c) and writing (hf_save.c) a model folder share. */
#ifndef CHECKPOINT_HF_PARTS_H
#define CHECKPOINT_HF_PARTS_H

#include "checkpoint/hf.h"

extern const char single_name[], index_name[], head_name[], config_name[];

bool is_weights(const char *name);      /* of a file */
/* Is this file of the folder a link to elsewhere?  What is in the same entry of the
 * hub's cache is not elsewhere. */
bool hf_leaves(struct arena *a, const char *folder, const char *name);
/* Is the file there, can it be read, is it no pointer of Git LFS?  Where the folder has
 * no config.json, fails saying what may have been meant by it. */
MUST_USE bool hf_file_look(struct arena *a, const char *folder, const char *name);

/* The names of the parameters, for name_in. */
const char **names_sorted(struct arena *a, const struct param *p, int64_t count);
bool name_in(const char *const *sorted, int64_t count, const char *name);
bool floating(enum dtype d);
/* Elements [from, from + count) of a tensor, in the order of its file. */
void disk_load(const struct disk_tensor *t, int64_t from, int64_t count, float *to);
/* Does a file with this layout of experts have the param's last two dims of memory
 * swapped?  And the tensor of it there: its name and shape. */
bool swapped_in(enum expert_layout e, const struct param *p);
bool same_shape(const struct disk_tensor *x, const struct disk_tensor *y);
struct disk_tensor tensor_in(enum expert_layout e, const struct param *p);

#endif
