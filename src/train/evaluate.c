/* evaluate.c - walks the held-out split once, a row for each data-parallel rank
 * at a time, without gradients. */
#include "train/evaluate.h"

#include "base/stop.h"
#include "train/crew.h"
#include "train/left_out.h"

#include <math.h>

static bool rows_loss(struct session *s, struct view_of_model *v,
                      const struct row *const *row, int rows, double *sum)
{
    double loss;
    if (!session_rows(s, v, row, rows, NULL, &loss))
        return fail_fault() == FAULT_NOT_FINITE
                   ? fail_in("row of %s", row[0]->sample[0].name) : false;
    *sum += loss;
    return true;
}

/* Rows book what was left out before them, the end of the split what came after all. */
static void left_out_count(struct session *s, struct loader *loader, bool end,
                           struct ledger *to)
{
    struct cursor all;
    if (end)
        left_out_row(s, loader);
    loader_cursor(loader, &all);
    to->bad = all.bad;
    to->too_long = all.too_long;
    to->no_loss = all.no_loss;
    to->dropped = all.bad + all.too_long + all.no_loss;
}

bool evaluate(struct session *s, struct view_of_model *view, int64_t rows,
              struct evaluation *out)
{
    struct arena a = arena_make("evaluate");
    struct loader_options o = s->loader;
    struct loader *loader = NULL;
    double sum = 0;
    bool end = false;
    *out = (struct evaluation){0};
    o.mix = s->held;
    o.hold = session_ways(s);
    o.positions = mix_epoch_samples(s->held);
    const struct row **row = NEW(&a, const struct row *, o.hold);
    bool ok = loader_open(&a, &o, NULL, &loader);
    while (ok && !end && out->rows < rows && !out->stopped) {
        int n = 0;
        out->stopped = stop_asked();
        while (ok && n < MIN(o.hold, rows - out->rows)) {
            ok = loader_next(loader, &row[n], &end);
            if (!ok || end)
                break;
            left_out_row(s, loader);
            ledger_add(&out->ledger, &row[n++]->ledger);
        }
        ok = ok && (n == 0 || rows_loss(s, view, row, n, &sum));
        out->rows += n;
    }
    if (ok && loader)
        left_out_count(s, loader, end, &out->ledger);
    if (loader)
        loader_close(loader);
    arena_free(&a);
    out->loss = out->ledger.supervised ? sum / (double)out->ledger.supervised : NAN;
    return ok;
}

/* Rows of the encoded samples, run one after the other. */
static bool encoded_loss(struct session *s, struct view_of_model *v, struct arena *a,
                         const struct encoded *encoded, int count, double *sum,
                         struct evaluation *out)
{
    const struct row_shape *shape = &s->loader.shape;
    struct packer *p = packer_make(a, shape, (int)s->recipe->data_window);
    int64_t *ticket = NEW(a, int64_t, shape->segments);
    const struct encoded **list = NEW(a, const struct encoded *, shape->segments);
    int next = 0, n;
    for (;;) {
        while (next < count &&
               packer_offer(p, next, encoded[next].tokens, encoded[next].patches,
                            encoded[next].nimage))
            next++;
        n = packer_take(p, next == count, ticket, shape->segments);
        if (n == 0 && next == count)
            return true;
        for (int i = 0; i < n; i++)
            list[i] = &encoded[ticket[i]];
        struct arena item = arena_make("row");
        struct row row;
        const struct row *one = &row;
        row_fill(&item, shape, list, n, &row);
        bool ok = rows_loss(s, v, &one, 1, sum);
        ledger_add(&out->ledger, &row.ledger);
        out->rows++;
        arena_free(&item);
        if (!ok)
            return false;
    }
}

bool evaluate_samples(struct session *s, struct view_of_model *view,
                      const struct sample *sample, int count, struct evaluation *out)
{
    struct arena a = arena_make("evaluate");
    struct encoded *encoded = NEW(&a, struct encoded, count);
    double sum = 0;
    bool ok = true;
    *out = (struct evaluation){0};
    for (int i = 0; i < count && ok; i++) {
        ok = loader_encode(&s->loader, &sample[i], &a, &encoded[i]);
        if (ok && (encoded[i].tokens > s->loader.shape.tokens ||
                   encoded[i].patches > s->loader.shape.patches))
            ok = fail("eval: %s needs %d token(s) and %d patch(es), a row holds %d "
                      "and %d",
                      sample[i].name, encoded[i].tokens, encoded[i].patches,
                      s->loader.shape.tokens, s->loader.shape.patches);
    }
    if (!ok)
        fail_kind(FAULT_DATA);
    ok = ok && encoded_loss(s, view, &a, encoded, count, &sum, out);
    out->loss = out->ledger.supervised ? sum / (double)out->ledger.supervised : NAN;
    arena_free(&a);
    return ok;
}

void images_swap(struct sample *sample, int count)
{
    if (count < 2)
        return;
    struct image_source *first = sample[0].image;
    int nfirst = sample[0].nimage;
    for (int i = 0; i < count; i++) {
        struct image_source *next = i + 1 < count ? sample[i + 1].image : first;
        int nnext = i + 1 < count ? sample[i + 1].nimage : nfirst;
        if (sample[i].nimage == nnext)
            sample[i].image = next;
    }
}
