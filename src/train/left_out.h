/* left_out.h - says which samples a run does without, and why: each once. */
#ifndef TRAIN_LEFT_OUT_H
#define TRAIN_LEFT_OUT_H

#include "train/session.h"

/* The first time of a name it is a warning; later times are only counted, by the books
 * (dropped_samples, bad_samples). */
void left_out_say(struct session *s, const char *name, const char *why);
/* What the loader left out on the way to its last row. */
void left_out_row(struct session *s, const struct loader *l);

#endif
