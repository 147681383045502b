/* tar_index.h - where the members of a tar shard lie, so that any of them is one read.
 *
 * Kept beside the shard as SHARD.idx (x.tar.idx), text:
 *   vlmoe-tar-index 2 SIZE MTIME_NS MEMBERS XXH64      of the shard; of the lines below
 *   OFFSET SIZE NAME                                   one member each, tar order
 * Folders are left out.  A hard or symbolic link has the place of the file it leads to;
 * offset 0 says that there is none, or that the member is a pipe or a device.
 * One whose size or time is not the shard's, or whose lines were changed, is made anew;
 * a file of that name that is no such index is left alone. */
#ifndef SOURCE_TAR_INDEX_H
#define SOURCE_TAR_INDEX_H

#include "base/arena.h"
#include "base/file.h"

struct tar_member { const char *name; int64_t offset, size; };
struct tar_index {
    int64_t shard_size, mtime;          /* bytes, nanoseconds; of the indexed shard */
    int64_t count;
    struct tar_member *member;
    uint64_t hash;                      /* of all names, offsets and sizes */
};

/* The index beside the shard, or a new one, which is then kept there if the folder can
 * be written.  A shard that is cut short, compressed, no tar, or more than one fails,
 * with the byte. */
MUST_USE bool tar_index_open(struct arena *a, const char *shard, struct tar_index *out);
/* Is the open file still the shard that was indexed? */
MUST_USE bool tar_index_fresh(const struct tar_index *x, int fd);

#endif
