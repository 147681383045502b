/* state_files.h - a training state's files: what state.c and state_read.c share. */
#ifndef CHECKPOINT_STATE_FILES_H
#define CHECKPOINT_STATE_FILES_H

#include "checkpoint/state.h"

static const char manifest_name[] = "manifest.json";

char *step_path(struct arena *a, const char *root, int64_t step);
char *file_path(struct arena *a, const char *folder, int64_t file);
/* state_open() of a folder by whatever name. */
MUST_USE bool state_at(struct arena *a, const char *path, int64_t step,
                       struct state *out);

#endif
