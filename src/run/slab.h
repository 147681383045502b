/* slab.h - one stretch of zeroed memory, exactly as large as planned. */
#ifndef RUN_SLAB_H
#define RUN_SLAB_H

#include "base/base.h"

struct slab { char *at; int64_t bytes; };

/* Fails (FAULT_MEMORY) when the machine does not have that much; `what` names it. */
MUST_USE bool slab_make(const char *what, int64_t bytes, struct slab *out);
/* At least that large, the old content in front; the address may change. */
MUST_USE bool slab_grow(const char *what, int64_t bytes, struct slab *s);
void slab_free(struct slab *s);

#endif
