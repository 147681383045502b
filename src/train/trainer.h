/* trainer.h - one rank's training in progress: what the loop (train.c) and a step of it
 * (step.c) share. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "train/balance.h"
#include "train/crew.h"
#include "measure/metrics.h"
#include "train/saver.h"

/* What the ranks of the process share: rank 0 fills it, the others read it once all
 * have met. */
struct batch {
    struct crew crew;
    struct loader *loader;              /* of rank 0; closed after its last reader */
    const struct row **row;             /* [batch.rows] of this step */
    struct ledger sum;                  /* of them */
    double waited;                      /* seconds for them */
    bool stop;                          /* by a signal: there is no step */
    bool last;                          /* no step follows it */
    double share;                       /* of the run, done with it */
    bool ended;                         /* with the step before: no rows are left */
    const struct row *empty;            /* NULL: was never wanted */
    bool evaluate, sample;              /* still to be done for that */
    bool exported;                      /* the model of the last step is there */
};

struct trainer {
    struct session s;
    struct train_state state;
    struct batch *batch;
    struct metrics_log *log;            /* of rank 0, as all files */
    struct feed *feed;                  /* [microbatches] */
    struct view_of_model *eval;         /* NULL: never wanted */
    const char *run, *checkpoints;
    const struct allowed *allowed;      /* to have changed */
    struct saver *saver;
    int lock;                           /* on the run, of rank 0 */
    bool locked;
    bool done;                          /* before anything was trained here */
    bool last;                          /* the step that was run ends the run */
    double share;                       /* of the run, done with that step */
    struct balance_sum images;          /* of the step */
    double hardware_flops;              /* of one step, all ranks */
    int64_t peak_bytes;                 /* the most of any rank */
};

/* Rows of the next step for all ranks, or the word to stop where a signal asked to.
 * Every rank calls it. */
MUST_USE bool step_begin(struct trainer *t);
/* Of rank 0, where the data stands after step `step`: what batch.last and batch.share
 * are to be.  Returns whether that ends the run. */
bool run_measure(const struct trainer *t, int64_t step, double *share);
/* Run those rows, update, book: one step, as its line of metrics. */
MUST_USE bool step_run(struct trainer *t, struct metrics *m);
/* What a step costs, summed over ranks, once the plan is known or has changed. */
MUST_USE bool step_costs(struct trainer *t);

#endif
