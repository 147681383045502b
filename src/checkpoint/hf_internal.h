/* hf_internal.h - what reading (hf.c) and writing (hf_save.c) a model folder share. */
#ifndef CHECKPOINT_HF_INTERNAL_H
#define CHECKPOINT_HF_INTERNAL_H

#include "checkpoint/hf.h"

extern const char single_name[], index_name[], head_name[];

/* The names of the parameters, for name_in. */
const char **names_sorted(struct arena *a, const struct param *p, int64_t count);
bool name_in(const char *const *sorted, int64_t count, const char *name);
bool floating(enum dtype d);
/* Does a file with this layout of experts have the param's last two dims of memory
 * swapped?  And the tensor of it there: its name and shape. */
bool swapped_in(enum expert_layout e, const struct param *p);
struct disk_tensor tensor_in(enum expert_layout e, const struct param *p);

#endif
