/* events.h - TensorBoard event files: scalars and texts over steps.
 *
 * A file of TFRecord frames (length, masked CRC-32C, bytes, masked CRC-32C) that hold
 * tensorflow.Event messages in protobuf encoding; written by hand because the format is
 * a page long and its library is a gigabyte. */
#ifndef MEASURE_EVENTS_H
#define MEASURE_EVENTS_H

#include "base/arena.h"

struct events;
/* A new file in `folder` that continues earlier ones after `step`: what they say of
 * later steps is void (a run that went on from a checkpoint). */
MUST_USE bool events_open(struct arena *a, const char *folder, int64_t step,
                          struct events **out);
MUST_USE bool events_scalar(struct events *e, int64_t step, const char *tag,
                            double value);
MUST_USE bool events_text(struct events *e, int64_t step, const char *tag,
                          const char *text);
MUST_USE bool events_flush(struct events *e);
void events_close(struct events *e);

uint32_t crc32c(const void *data, int64_t size);        /* Castagnoli, for TFRecord */

#endif
