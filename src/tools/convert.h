/* convert.h - model folders and training states into model folders, some megabytes at a
 * time. */
#ifndef TOOLS_CONVERT_H
#define TOOLS_CONVERT_H

#include "checkpoint/hf.h"

struct convert_options {
    const char *from; /* model folder, or a checkpoints/step-N folder */
    const char *to;                     /* model folder to write */
    const char *like;                   /* folder whose config and other files to take;
                                         * NULL: `from`, or what the state's run used */
    bool retype;                        /* to `dtype`, else as in `like` */
    enum dtype dtype;                   /* of what `like` does not have, too */
    enum expert_layout experts;         /* EXPERTS_AUTO: as in `like`, or else `from` */
    bool force;                         /* weights that are not finite, too */
    int64_t shard_bytes;                /* of one weight file at most */
};
MUST_USE bool convert(const struct convert_options *o);

#endif
