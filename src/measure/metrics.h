/* metrics.h - what a run leaves behind step by step: metrics.jsonl, TensorBoard events,
 * the progress line.  Every figure comes from the ledger, the plan and the clock. */
#ifndef MEASURE_METRICS_H
#define MEASURE_METRICS_H

#include "data/rows/ledger.h"
#include "recipe/recipe.h"

struct metrics {                        /* one step; units as in docs/recipes.md */
    int64_t step;
    double share;                       /* of the run, done with it */
    bool last;                          /* it ends the run */
    double loss, aux_loss, z_loss, grad_norm, lr;
    double step_ms, data_wait_ms;
    struct ledger ledger;
    double model_flops, hardware_flops;
    int64_t peak_bytes, skipped_steps, bad_samples, epoch;
    double expert_load_max_over_mean;   /* worst layer; 0 without experts */
    /* Vision work of the fullest ranks over an even share of all, as it was and if
     * every rank encoded its own row's images; 0 without images. */
    double vision_load_max_over_mean, vision_load_unbalanced;
    int64_t vision_crowded;             /* microbatches without room to be balanced */
    const char *changes;                /* of settings, since the step before; NULL */
    uint64_t order_hash;                /* xxHash of the step's sample ids, in order */
};

struct metrics_log;
/* RUN/metrics.jsonl, continued: lines past `step` (from a run that went on after its
 * last checkpoint) and a torn last line are removed first; lines of steps 1..step that
 * are not there are warned of.  World: number of ranks. */
MUST_USE bool metrics_open(struct arena *a, const char *run, const struct recipe *r,
                           int64_t step, int world, struct metrics_log **out);
MUST_USE bool metrics_add(struct metrics_log *l, const struct metrics *m);
/* The lines so far are on the disk, before a state is that counts on them. */
MUST_USE bool metrics_sync(const struct metrics_log *l);
/* The held-out loss of the step whose line is the last, onto that line. */
MUST_USE bool metrics_evaluated(struct metrics_log *l, double loss);
/* Is the last line of this step, without a held-out loss? */
bool metrics_unevaluated(const struct metrics_log *l, int64_t step);
/* A text for TensorBoard (generated samples). */
MUST_USE bool metrics_text(struct metrics_log *l, int64_t step, const char *tag,
                           const char *text);
/* What is happening before and between steps: "loading weights", "saving step 40". */
void metrics_phase(const char *phase);
void metrics_close(struct metrics_log *l);
/* One step as the JSON object of metrics.jsonl. */
char *metrics_json(struct arena *a, const struct metrics *m, int world);

#endif
