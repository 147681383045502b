/* state_files.h - names of a training state's files: what state.c and state_read.c
 * share. */
#ifndef CHECKPOINT_STATE_FILES_H
#define CHECKPOINT_STATE_FILES_H

#include "base/arena.h"

static const char manifest_name[] = "manifest.json";

char *step_path(struct arena *a, const char *root, int64_t step);
char *file_path(struct arena *a, const char *folder, int64_t file);

#endif
