/* hardware.h - reads a hardware table: recipes/hardware/NAME.yaml. */
#ifndef RECIPE_HARDWARE_H
#define RECIPE_HARDWARE_H

#include "plan/cost.h"

/* `name` is a file's path, or h200 for recipes/hardware/h200.yaml.  Every key of
 * hardware.def, `source` and `compute` must be there, once; an unknown one fails and
 * names the nearest (FAULT_USAGE). */
MUST_USE bool hardware_read(struct arena *a, const char *name, struct hardware *out);
/* The same from a text; `name` is for messages. */
MUST_USE bool hardware_parse(struct arena *a, const char *name, const char *yaml,
                             int64_t size, struct hardware *out);

#endif
