/* evaluate.c - walks the held-out split once, row by row, without gradients. */
#include "train/evaluate.h"

static bool row_loss(struct session *s, struct view_of_model *v, const struct row *row,
                     double *sum)
{
    feed_row(&v->feed, s->machine, &v->model, 0, row, 1, (double)row->live, s->router_bias,
             NULL);
    if (!machine_step(s->machine))
        return false;
    *sum += *(const float *)machine_value(s->machine, v->model.decoder.cross_entropy, 0).data;
    return true;
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
    o.hold = 1;
    o.positions = mix_epoch_samples(s->held);
    bool ok = loader_open(&a, &o, NULL, &loader);
    while (ok && out->rows < rows) {
        const struct row *row;
        ok = loader_next(loader, &row, &end);
        if (!ok || end)
            break;
        ok = row_loss(s, view, row, &sum);
        ledger_add(&out->ledger, &row->ledger);
        out->rows++;
    }
    if (loader)
        loader_close(loader);
    arena_free(&a);
    out->loss = out->ledger.supervised ? sum / (double)out->ledger.supervised : 0;
    return ok;
}
