/* outlook.h - what a training step of a recipe will do and need on hardware that is not
 * here, without doing it: memory, work, traffic, time. */
#ifndef OUTLOOK_OUTLOOK_H
#define OUTLOOK_OUTLOOK_H

#include "plan/cost.h"
#include "train/crew.h"
#include "train/session.h"

#include <signal.h>

struct outlook_options {
    int64_t rank;               /* to show in detail; -1: the one that needs most */
    const char *hardware;       /* hardware table; NULL: the recipe's plan.hardware */
    bool json;                  /* for programs: json.c */
    bool explain;               /* list every step of the rank; of a search every
                                 * candidate */
    bool fitting;               /* stop at the first stage that does not fit: what
                                 * follows is not planned, there is no time */
    const volatile sig_atomic_t *stop;  /* of a search: raised, it ends with the best
                                         * so far; or NULL */
};

#define GIB (1024.0 * 1024 * 1024)

/* One rank of each stage stands for all of its stage: they run the same plan over equal
 * shares (only their links to other nodes may differ). */
struct outlook_stage {
    struct rank rank;           /* the first of the stage, or of those in a group of
                                 * experts or of a row that straddles nodes */
    bool ok;
    struct failure why;         /* not */
    struct session session;
    struct work *work;          /* [steps] */
    double *cost, *talk;        /* [steps] seconds; of them on messages */
    struct forecast forecast;   /* as if no other stage were waited for */
    double flops;               /* hardware's: recompute and capacity counted */
    int64_t need;               /* bytes; what is on the host too if that is the device
                                 */
};

struct outlook {
    struct arena arena;
    struct hardware hardware;
    struct crew crew;           /* the mesh */
    struct workload load;
    int stages;                 /* planned: all, but for options.fitting */
    struct outlook_stage *stage;
    int largest;                /* the stage that needs most device memory */
    int64_t have;               /* bytes a rank may take */
    double seconds, bubble;     /* of a step; share of compute lanes' time spent waiting
                                 * for other stages */
    double tokens;              /* useful tokens of a step, all ranks */
    double flops;               /* the model's, of a step, all ranks */
    double rows;                /* of an expert in a microbatch, all chosen equally
                                 * often; 0 without experts */
};

/* What a stage's rank does for one component (or "state": weights and gradients on
 * their way, "stages": what crosses between them, "copies", "sums"), a step. */
struct outlook_part {
    const char *name;
    double flops;               /* of a typical batch, what runs again too */
    double compute, talk;       /* seconds, of each by itself */
    double inside, across;      /* bytes to the rank */
};
/* In `a`; returns how many. */
int64_t outlook_parts(const struct outlook *o, const struct outlook_stage *s,
                      struct arena *a, struct outlook_part **out);

/* Plans the recipe.  Fails (FAULT_USAGE) where the layout is not legal.  Close it
 * whatever this returned. */
MUST_USE bool outlook_open(struct outlook *o, const struct recipe *r,
                           const struct outlook_options *options);
void outlook_close(struct outlook *o);
bool outlook_fits(const struct outlook *o);
/* Of all blocks of `span` consecutive ranks, those on more nodes than so many need. */
int outlook_straddlers(const struct mesh *m, int span);
/* All of it as text (text.c). */
void outlook_print(const struct outlook *o, const struct outlook_options *options,
                   struct text *t);
/* The same for programs. */
void outlook_json(const struct outlook *o, struct text *t);

/* Open, print, close.  Fails (FAULT_MEMORY) after the text where it does not fit,
 * naming what to change. */
MUST_USE bool outlook(const struct recipe *r, const struct outlook_options *options,
                      struct text *t);
/* Layouts of as many ranks, recompute and row size: prints why each lost but one, and
 * that one as overrides (search.c).  Fails (FAULT_MEMORY) where none fits. */
MUST_USE bool outlook_search(const struct recipe *r,
                             const struct outlook_options *options, struct text *t);
/* Bytes of the unit in which `most` reads well, and its name. */
double outlook_unit(int64_t most, const char **name);

#endif
