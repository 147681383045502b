/* session.h - a recipe made real: model, data and machine, as far as a command needs.
 *
 *     struct session s;
 *     bool ok = session_open(&s, recipe, true) && session_data(&s) && session_machine(&s);
 *     ...                              // fail_message() says why not
 *     session_close(&s);               // always, whatever session_open returned */
#ifndef TRAIN_SESSION_H
#define TRAIN_SESSION_H

#include "data/loader.h"
#include "train/model.h"

struct session {
    struct arena arena;                 /* everything below lives here */
    const struct recipe *recipe;
    struct model model;                 /* recorded with the loss */
    struct plan *plan;                  /* one step: batch.rows microbatches; or, where
                                         * nothing trains, one row forward */

    struct tokenizer *tokenizer;        /* session_text */
    struct chat chat;
    struct loader_options loader;       /* for `mix`; evaluation swaps in `held` */
    struct source *source[MAX_SOURCES]; /* session_data */
    int nsource;
    struct mix *mix, *held;             /* held NULL without data.hold_out */
    uint64_t data_hash;

    struct team *team;                  /* session_machine */
    struct stream stream;
    const struct ops *ops;
    struct machine *machine;
    float *router_bias;                 /* [MoE layers, E] or NULL */
};

/* Reads the model's config, records the graph, builds the plan.  No data, no memory.
 * `trains` false: forward only, no gradients, no optimizer state. */
MUST_USE bool session_open(struct session *s, const struct recipe *recipe, bool trains);
/* Tokenizer, chat template, image processor. */
MUST_USE bool session_text(struct session *s);
/* The same, and sources and their order. */
MUST_USE bool session_data(struct session *s);
/* Memory and weights: loaded or fresh by model.weights. */
MUST_USE bool session_machine(struct session *s);
void session_close(struct session *s);

/* Another purpose over the same weights: a model recorded for it and a forward plan of
 * one microbatch.  Use machine_use(s->machine, v->plan), then feed_row. */
struct view_of_model { struct model model; struct plan *plan; struct feed feed; };
struct view_of_model *session_view(struct session *s, const struct model_purpose *purpose,
                                   const struct capacity *capacity);

#endif
