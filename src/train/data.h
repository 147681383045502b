/* data.h - what a session reads: texts and images as the model sees them, sources. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include "train/session.h"

/* Of session.loader what loader_bytes asks: there without data. */
struct loader_options session_rows_ahead(const struct session *s);
/* Tokenizer, chat template, image processor. */
MUST_USE bool session_text(struct session *s);
/* The same, and sources and their order. */
MUST_USE bool session_data(struct session *s);

#endif
