/* model.h - one model, recorded for one purpose: which inputs it reads, what it makes.
 *
 * Where the recipe's words, the config's numbers, the packer's rows and the recorded
 * graph meet; every other file here works through it. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include "data/rows/pack.h"
#include "decoder/decoder.h"
#include "graph/flops.h"
#include "run/run.h"
#include "recipe/recipe.h"

struct model {
    struct model_config config;
    struct capacity capacity;
    unsigned frozen;                    /* bit p: enum part p does not train */
    bool balanced;                      /* images are shared out: train/balance.h */
    int64_t encodes;                    /* patches that a rank has room to encode */
    struct graph graph;
    struct decoder_graph decoder;
    struct model_inputs {               /* graph inputs; NONE where not asked for */
        int input, target, position, segment, feature, feature_token, pixels, patch,
            image, live, scale, share, router_bias, want, cache_row, cache_from;
        int pixel_row, pixel_leave, pixel_arrive, feature_order, feature_undo,
            feature_leave, feature_arrive;              /* where balanced */
    } in;
};

struct model_purpose {                  /* what to record it for */
    enum dtype dtype;                   /* graph.dtype */
    unsigned frozen;
    struct vision_options vision;
    struct decoder_options decoder;
};
/* Training: loss with the recipe's coefficients.  The others share its parameters. */
struct model_purpose purpose_train(const struct recipe *r, const struct model_config *c,
                                   unsigned frozen);
/* Greedy choices, with a cache of so many rows: of rows of prompts, or (`answers`) of
 * rows with the next place of one answer each. */
struct model_purpose purpose_answers(const struct recipe *r, int64_t cache_rows,
                                     bool answers);
struct model_purpose purpose_logits(void);

/* `mesh` with this rank's number, NULL: alone. */
void model_record(struct arena *a, const struct model_config *config,
                  const struct capacity *capacity, const struct model_purpose *purpose,
                  const struct mesh *mesh, int rank, struct model *out);
/* What a layout must divide. */
struct mesh_limits limits_of(const struct model_config *c,
                             const struct capacity *capacity);
/* batch.* of a recipe; patches rounded down to whole merged tokens. */
struct capacity capacity_of(const struct recipe *r, const struct model_config *c);
struct row_shape row_shape_of(const struct capacity *c, const struct model_config *m);

/* "vision router" -> bits of enum part; fails naming the nearest part. */
MUST_USE bool parts_parse(const char *list, unsigned *parts);
/* What trains: parameters by part, trainable and frozen; one line a part.  Of the whole
 * model, whatever this rank has of it. */
void model_table(const struct model *m, struct text *t);
int64_t model_parameters(const struct model *m, bool trainable_only);

/* The inputs of one microbatch: borrowed from the row, except what is made here. */
struct feed {
    int32_t *input;                     /* ids, -1 where an image feature goes */
    void *pixels;                       /* of a type that rows have not; else NULL */
    float scale, share;
};
struct feed feed_make(struct arena *a, const struct model *m);
/* What is asked of a row's places where tokens are chosen: inputs of decoder.h, [T]. */
struct ask { int32_t *want, *cache_row, *cache_from; };
/* Bind `row` as microbatch mb.  scale and share as in decoder.h; ask may be NULL.  Of
 * a balanced model balance_feed binds the rest: all about images but their pixels. */
void feed_row(struct feed *f, struct machine *machine, const struct model *m, int mb,
              const struct row *row, double supervised, double live,
              const float *router_bias, const struct ask *ask);
/* The counts model_flops() wants, from books. */
struct flops_count flops_count_of(const struct ledger *l, const struct model *m);

#endif
