/* encode.h - one sample from words and files to ids and patches, or why not. */
#ifndef DATA_ENCODE_H
#define DATA_ENCODE_H

#include "data/loader.h"

/* Why a sample is left out; the ledger counts them apart. */
enum cause { CAUSE_NONE, CAUSE_TOO_LONG, CAUSE_BAD, CAUSE_NO_LOSS };

/* The encoded sample, in `item` memory; `scratch` memory can go afterwards.  Any cause
 * but CAUSE_NONE comes with a message; CAUSE_NO_LOSS with a complete `out` too.  How
 * long the sample is shows before any pixel is decoded. */
enum cause sample_encode(const struct loader_options *o, const struct sample *s,
                         struct arena *scratch, struct arena *item,
                         struct encoded *out);

#endif
