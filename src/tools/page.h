/* page.h - a run as one self-contained HTML page: curves, books, samples with images.
 */
#ifndef TOOLS_PAGE_H
#define TOOLS_PAGE_H

#include "base/arena.h"

/* Reads RUN/metrics.jsonl, recipe.yaml and the newest samples; writes RUN/report.html
 * and RUN/loss.svg.  Fails (usage) where RUN holds no metrics. */
MUST_USE bool page_write(const char *run);
/* The same after a training, where a step was trained since the page was written. */
MUST_USE bool page_renew(const char *run);

#endif
