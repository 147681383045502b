/* encode.h - one sample from words and files to ids and patches, or why not. */
#ifndef ROWS_ENCODE_H
#define ROWS_ENCODE_H

#include "data/rows/loader.h"

/* Why a sample is left out; the ledger counts them apart. */
enum cause { CAUSE_NONE, CAUSE_TOO_LONG, CAUSE_BAD, CAUSE_NO_LOSS };

/* All of a sample but pixels: of its images the grids, and (*file)[i], the bytes that
 * were read, in `scratch` memory.  No pixel is decoded.  Causes as below. */
enum cause sample_measure(const struct loader_options *o, const struct sample *s,
                          struct arena *scratch, struct arena *item,
                          struct bytes **file, struct encoded *out);
/* Then the pixels, from file[nimage].  Fails where an image is bad after all. */
MUST_USE bool sample_load(const struct loader_options *o, const struct sample *s,
                          const struct bytes *file, struct arena *item,
                          struct encoded *out);
/* Both: the encoded sample, in `item` memory; `scratch` memory can go afterwards.  Any
 * cause but CAUSE_NONE comes with a message; CAUSE_NO_LOSS with a complete `out` too.
 * How long the sample is shows before any pixel is decoded. */
enum cause sample_encode(const struct loader_options *o, const struct sample *s,
                         struct arena *scratch, struct arena *item,
                         struct encoded *out);

#endif
