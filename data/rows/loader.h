/* loader.h - rows for the training loop: read, decode, encode, pack, ahead of need.
 *
 * Workers prefetch; rows come out in one order whatever their number (0 = in the
 * caller's thread).  The cursor says exactly where the data stands, so a resumed run
 * sees the samples an unbroken one would have seen. */
#ifndef ROWS_LOADER_H
#define ROWS_LOADER_H

#include "data/text/chat.h"
#include "data/rows/mix.h"
#include "data/rows/pack.h"

/* Of a sample longer than a row: left out; its images made smaller; the end of its text
 * cut off, where that makes it fit; or the end of the run. */
enum long_policy { LONG_DROP, LONG_SHRINK, LONG_CUT, LONG_ERROR };
enum bad_policy { BAD_SKIP, BAD_FAIL };

struct loader_options {
    const struct mix *mix;
    const struct chat *chat;            /* template + tokenizer */
    struct row_shape shape;
    struct image_shape image;
    struct image_limits limits;
    struct image_rules rules;
    enum long_policy too_long;
    enum bad_policy bad;
    int bad_limit;                      /* bad samples in a row that are skipped */
    int window;                         /* samples to choose from, 1 to WINDOW_MAX */
    int workers, ahead;                 /* threads that read; rows kept ready */
    int hold;                           /* rows handed out that stay valid (0: 1) */
    int64_t positions;                  /* stop after so many; 0: epochs go on */
};

/* Where the data stands: all that a resume needs, a few numbers. */
enum { WINDOW_MAX = 512 };
struct cursor {
    int64_t position;                   /* of the mix: all below it is in rows, */
    int nwaiting;                       /* but these, which still wait in the window */
    int64_t waiting[WINDOW_MAX];
    int64_t rows;                       /* rows handed out so far */
    int64_t bad, too_long, no_loss, consecutive_bad;    /* counted so far */
    int64_t broken_in_row;              /* consecutive ones whose pixels were bad */
};

/* `from` NULL: from the beginning.  `a` must outlive loader_close.  With workers, as
 * many threads decode, and one more packs.  In memory at most loader_bytes: rows ready
 * and handed out, the pixels of rows being filled, and of the samples that wait to be
 * chosen text and small files; to that comes what decoding a picture takes. */
struct loader;
int64_t loader_bytes(const struct loader_options *o);
MUST_USE bool loader_open(struct arena *a, const struct loader_options *o,
                          const struct cursor *from, struct loader **out);
/* The next row; valid until `hold` newer ones are handed out (a step of N rows needs
 * hold = N).  Its ledger counts what was left out since the row before.  *end is set,
 * *out NULL, when `positions` ran out.  Fails (data) when bad samples pass the limit,
 * the policy says fail, or a whole epoch brought no sample that can be used. */
MUST_USE bool loader_next(struct loader *l, const struct row **out, bool *end);
/* The cursor after the last row handed out: from here the same rows follow, bit for
 * bit, whatever the number of workers. */
void loader_cursor(const struct loader *l, struct cursor *out);
double loader_wait_seconds(const struct loader *l);     /* spent in loader_next */
void loader_close(struct loader *l);

/* One sample by hand, for `data sample`, `generate` and evaluation; it may be without
 * loss, but must fit.  Its position and part are -1. */
MUST_USE bool loader_encode(const struct loader_options *o, const struct sample *s,
                            struct arena *item, struct encoded *out);

/* The samples left out since the row before the last row handed out (or before the
 * failure), and why; newest last, at most the `room` newest.  Returns how many. */
struct left_out { char name[256]; char why[512]; };
int loader_left_out(const struct loader *l, struct left_out *out, int room);

#endif
