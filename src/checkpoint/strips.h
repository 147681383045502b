/* strips.h - where the elements of a rank's part of a param lie in a model folder.
 *
 * Memory may have the last two dims of experts swapped (param.transposed), boxes cut
 * dims, and FSDP cuts boxes anywhere; a file is row after row of the whole tensor.  A
 * strip is a run of elements that lie together there. */
#ifndef CHECKPOINT_STRIPS_H
#define CHECKPOINT_STRIPS_H

#include "graph/graph.h"

struct strip {
    int64_t disk, count;                /* elements of the tensor as it is on disk */
    int64_t memory, step;               /* the first one's place in the part; from each
                                         * to the next there */
};

struct strips {                         /* an iteration */
    const struct param *param;
    struct stretch part;
    bool swapped;                       /* the file against memory */
    int64_t at;                         /* not swapped: next element of the box */
    int64_t row, end, column;           /* swapped: rows [row, end) of the box are a
                                         * block of one matrix, next is this column */
};

/* Elements `part` of p->box; `swapped`, of a param that is transposed alone: the file
 * has the last two dims of memory swapped. */
struct strips strips_of(const struct param *p, bool swapped, struct stretch part);
/* The next one; of a matrix in the order of the file. */
bool strips_next(struct strips *s, struct strip *out);

/* Strips that lie side by side in memory, moved together so that both sides are touched
 * line by line: row r begins `stride` elements further in the file than row r - 1, and
 * one further in memory. */
enum { PANEL_ROWS = 32, PANEL_COLUMNS = 256 };
struct panel { struct strip first; int64_t rows, stride; };
bool strips_panel(struct strips *s, struct panel *out);

/* Some columns of a panel on their way, row by row; a little longer than needed, so
 * that rows do not share lines of the cache. */
struct tile { float at[PANEL_ROWS][PANEL_COLUMNS + 8]; };
void tile_to_memory(const struct tile *t, int64_t rows, int64_t columns, float *to,
                    int64_t step);
void tile_from_memory(struct tile *t, int64_t rows, int64_t columns, const float *from,
                      int64_t step);

#endif
