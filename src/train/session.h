/* session.h - a recipe made real: model, data and machine, as far as a command needs.
 *
 *     struct session s;
 *     bool ok = session_open(&s, recipe, true) && session_data(&s) &&
 *               session_machine(&s);
 *     ...                              // fail_message() says why not
 *     session_close(&s);               // always, whatever session_open returned */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H

#include "data/rows/loader.h"
#include "train/model.h"

struct crew;                            /* crew.h */

struct session {
    struct arena arena;                 /* everything below lives here */
    const struct recipe *recipe;
    const struct rank *rank;            /* NULL: alone */
    struct crew *crew;                  /* NULL: alone */
    enum dtype compute;                 /* the graph's type */
    struct precision precision;         /* of what is kept beside */
    struct model model;                 /* recorded with the loss */
    const struct stages *stages; /* of a pipeline, else NULL; and its place there */
    int stage;
    double room, image_room;            /* moe.capacity and vision.capacity, or what
                                         * they have grown to */
    struct plan *plan; /* one step: this rank's share of batch.rows; or,
                        * where nothing trains, one row forward */

    struct tokenizer *tokenizer;        /* session_text */
    struct chat chat;
    struct loader_options loader;       /* for `mix`; evaluation swaps in `held` */
    struct source *source[MAX_SOURCES]; /* session_data */
    int nsource;
    struct mix *mix, *held;             /* held NULL without data.hold_out */
    uint64_t data_hash, model_hash;     /* of the data; of the files of model.path
                                         * that say how text and images are read */
    struct left_names *left;            /* named already (left_out.h) */

    struct team *team;                  /* session_machine */
    struct stream stream;
    const struct ops *ops;
    struct machine *machine;
    float *router_bias;                 /* [MoE layers, E] or NULL */
};

/* Before all else: the model folder looked over (hf_look), for an export too? */
MUST_USE bool session_look(const struct recipe *recipe, bool exports);
/* session_look, then reads the model's config, records the graph, builds the plan.  No
 * data, no memory.  `trains` false: forward only, no gradients, no optimizer state. */
MUST_USE bool session_open(struct session *s, const struct recipe *recipe, bool trains);
/* The same as one of the ranks of `crew` (NULL both: alone). */
MUST_USE bool session_join(struct session *s, const struct recipe *recipe, bool trains,
                           const struct rank *rank, struct crew *crew);
/* The same for a device that is not here and computes in `compute`, for any rank of any
 * number (of `rank` only these two are read): a plan to look at, never to run. */
MUST_USE bool session_preview(struct session *s, const struct recipe *recipe,
                              enum dtype compute, const struct rank *rank,
                              struct crew *crew);
/* moe.capacity: can experts lack room for their rows (decoder.overflow)?  Then the step
 * meant nothing: make more room and run it again.  All ranks together. */
bool session_may_grow(const struct session *s);
MUST_USE bool session_grow(struct session *s);
/* vision.capacity: more room for images, before a step that finds none.  All ranks. */
MUST_USE bool session_grow_images(struct session *s);
/* Is this the rank that reads data and writes files? */
bool session_leads(const struct session *s);
/* Memory and weights: loaded or fresh by model.weights. */
MUST_USE bool session_machine(struct session *s);
void session_close(struct session *s);

/* Another purpose over the same weights: a model recorded for it and a forward plan of
 * one microbatch, in `a`.  Use machine_use(s->machine, v->plan), then feed_row. */
struct view_of_model {
    int number;                         /* in the list of session_follow */
    struct model model;
    struct plan *plan;
    struct feed feed;
    int32_t *best;                      /* [rows * T] of the rows that ran last, -1
                                         * where none was wanted; NULL: the view chooses
                                         * none */
    int64_t *key;                       /* for it */
};
struct view_of_model *session_view(struct session *s, struct arena *a,
                                   const struct model_purpose *purpose,
                                   const struct capacity *capacity);
#endif
