/* shard.h - any readable source to WebDataset shards with their indexes.
 *
 *   FOLDER/PREFIX-000000.tar      KEY.0.jpg  KEY.1.png  KEY.json  (openai messages)
 *   FOLDER/PREFIX-000000.tar.idx
 *
 * Image bytes are copied as they are.  Written to FOLDER.part, which becomes FOLDER
 * when all is on disk, was read back and holds what was written: after a failure or a
 * crash there is no FOLDER, and the next run starts over.  The same source gives the
 * same bytes. */
#ifndef SOURCE_SHARD_H
#define SOURCE_SHARD_H

#include "data/source/source.h"

struct shard_options {
    const char *folder;                 /* must not exist, or be empty */
    const char *prefix;                 /* NULL: "shard" */
    int64_t bytes;                      /* most in a shard of many samples; 0: 2^29 */
    bool skip;                          /* leave bad samples out; else none is packed,
                                         * and all that are bad are named */
};
struct shard_report {
    int64_t shards, samples, images, bad;
    int64_t image_bytes;
    char first_bad[512];                /* why, "" if none */
};
MUST_USE bool shards_write(const struct source *from, const struct shard_options *o,
                           struct shard_report *out);

#endif
