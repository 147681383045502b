/* yaml_limits.h - how large a YAML text may be in its parts, asked before it is loaded.
 *
 * The library's time grows with the square of nesting and of anchors, ours with that of
 * a group's keys; no recipe needs many of either. */
#ifndef RECIPE_YAML_LIMITS_H
#define RECIPE_YAML_LIMITS_H

#include "base/base.h"

/* Fails with "line N: ...".  A text that is no YAML is for the loader to refuse. */
MUST_USE bool yaml_limits_check(const char *yaml, int64_t size);

#endif
