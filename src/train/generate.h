/* generate.h - greedy answers of a model, many at a time.
 *
 * Prompts are packed in rows like samples; what attention needs of them stays in a
 * cache, and every further token runs one place for each answer under way.  Rows and
 * cache are as large as the prompts and answers need. */
#ifndef TRAIN_GENERATE_H
#define TRAIN_GENERATE_H

#include "train/session.h"

struct answer {
    const char *text;                   /* without the end token */
    const int32_t *id;                  /* [tokens] the same as ids */
    int tokens;
    bool ended;                         /* by its end token, not by the limit */
};
/* The first `count` samples of `mix` that can be read and fit a row, in `a`; *n may be
 * fewer.  Those that cannot be read are left out with a warning that names them, or
 * fail (data.bad). */
MUST_USE bool samples_pick(struct session *s, const struct mix *mix, int64_t count,
                           struct arena *a, struct sample *sample, int *n);
/* Answers of at most so many tokens to the prompts (messages up to the first assistant
 * turn) of `sample`; in `a`.  A sample that cannot be read, or a prompt that does not
 * fit a row of `limit`, fails.  Afterwards the machine runs the session's plan.  Rank 0
 * calls generate, the others generate_follow, which returns with it. */
MUST_USE bool generate(struct session *s, struct arena *a, const struct capacity *limit,
                       const struct sample *sample, int count, int most_tokens,
                       struct answer *out);
MUST_USE bool generate_follow(struct session *s);
/* The first assistant turn's text; NULL if there is none. */
const char *sample_answer(const struct sample *s, struct arena *a);
/* The user's text, images shown as <image>. */
const char *sample_prompt(const struct sample *s, struct arena *a);

#endif
