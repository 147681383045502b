/* text.c - an outlook as text.
 *
 * Stands alone because golden texts pin its format and nothing depends on it. */
#include "outlook/outlook.h"

#include "run/run.h"
#include "train/choices.h"
#include "train/data.h"
#include "train/saver.h"
#include "train/weights.h"

/* ---- what it is about ---- */

static void parameters_print(const struct outlook *o, const struct session *s,
                             struct text *t)
{
    const struct graph *g = &s->model.graph;
    const struct plan *p = s->plan;
    int64_t all[PARTS + 1] = {0}, trains[PARTS + 1] = {0}, here[PARTS + 1] = {0};
    for (int64_t i = 0; i < g->nparam; i++) {
        const struct param *x = &g->param[i];
        int64_t count = param_disk_count(x);
        int part[] = {x->part, PARTS};
        for (int k = 0; k < COUNT(part); k++) {
            all[part[k]] += count;
            trains[part[k]] += x->trainable ? count : 0;
            here[part[k]] += p->weight[x->unit] >= 0 ? x->count / p->ways[x->unit] : 0;
        }
    }
    text_add(t, "%-12s%16s%16s%16s\n", "part", "parameters", "trained", "stored here");
    for (int k = 0; k <= PARTS; k++)
        if (all[k])
            text_add(t, "%-12s%16lld%16lld%16lld%s\n", k < PARTS ? part_name[k] : "all",
                     (long long)all[k], (long long)trains[k], (long long)here[k],
                     trains[k] ? "" : "  frozen");
    text_add(t, "batch: %lld row(s), %.0f tokens, %d microbatch(es) a rank\n",
             (long long)s->recipe->batch_rows, o->tokens, p->mbs);
}

static void types_print(const struct session *s, struct text *t)
{
    const struct precision *x = &s->precision;
    if (s->compute == DTYPE_F32 && x->moment == DTYPE_F32 && x->gradient == DTYPE_F32) {
        text_add(t, "types: f32 throughout\n");
        return;
    }
    text_add(t, "types: %s activations and working weights (router, statistics and "
                "losses f32), %s, %s moments, %s gradients\n", dtype_name[s->compute],
             s->compute == DTYPE_F32 || x->masters ? "f32 masters" : "no masters",
             dtype_name[x->moment], dtype_name[x->gradient]);
}

static void head_print(const struct outlook *o, const struct outlook_stage *s,
                       struct text *t)
{
    const struct hardware *h = &o->hardware;
    text_add(t, "hardware %s: %s\n", h->name, h->source);
    types_print(&s->session, t);
    if (s->session.plan->wire != DTYPE_F32)
        text_add(t, "gradients travel as %s (routers' as f32), sums are f32\n",
                 dtype_name[s->session.plan->wire]);
    text_add(t, "\n%s", mesh_text(&o->crew.mesh, t->arena));
    text_add(t, "\nrank %d\n", s->rank.rank);
    parameters_print(o, &s->session, t);
}

/* ---- memory ---- */

double outlook_unit(int64_t most, const char **name)
{
    *name = most >= (int64_t)4 << 30 ? "GiB" : "MiB";
    return most >= (int64_t)4 << 30 ? GIB : GIB / 1024;
}

static void kinds_head(const char *first, struct text *t)
{
    text_add(t, "%-11s", first);
    for (int k = 0; k < MEMORIES; k++)
        text_add(t, "%12s", memory_name[k]);
    text_add(t, "%12s\n", "device");
}

static void kinds_row(const char *first, const int64_t *bytes, double unit,
                      struct text *t)
{
    int64_t device = 0;
    text_add(t, "%-11s", first);
    for (int k = 0; k < MEMORIES; k++) {
        text_add(t, "%12.2f", (double)bytes[k] / unit);
        device += k == MEMORY_HOST ? 0 : bytes[k];
    }
    text_add(t, "%12.2f\n", (double)device / unit);
}

static void memory_print(const struct outlook *o, const struct outlook_stage *s,
                         struct text *t)
{
    const struct plan *p = s->session.plan;
    const char *name;
    double unit = outlook_unit(o->stage[o->largest].need, &name);
    struct memory_row *row;
    text_add(t, "\nmemory at the peak, %s\n", name);
    if (o->stages > 1)
        kinds_head("stage", t);
    for (int i = 0; i < o->stages && o->stages > 1; i++) {
        struct memory_row sum = {0};
        int rows = plan_memory(o->stage[i].session.plan, t->arena, &row);
        for (int k = 0; k < rows * MEMORIES; k++)
            sum.bytes[k % MEMORIES] += row[k / MEMORIES].bytes[k % MEMORIES];
        kinds_row(arena_text(t->arena, "%d", i), sum.bytes, unit, t);
    }
    struct memory_row sum = {0};
    int rows = plan_memory(p, t->arena, &row);
    kinds_head(arena_text(t->arena, "rank %d", s->rank.rank), t);
    for (int i = 0; i < rows; i++) {
        int64_t any = 0;
        for (int k = 0; k < MEMORIES; k++) {
            sum.bytes[k] += row[i].bytes[k];
            any += row[i].bytes[k];
        }
        if (any)
            kinds_row(row[i].component, row[i].bytes, unit, t);
    }
    kinds_row("all", sum.bytes, unit, t);
    text_add(t, "allocated: %.2f %s (%lld byte(s)), of it %.2f state; %.2f parked on "
                "the "
                "host\n", (double)p->bytes / unit, name, (long long)p->bytes,
             (double)p->state_bytes / unit, (double)p->host_bytes / unit);
    const struct outlook_stage *most = &o->stage[o->largest];
    if (outlook_fits(o))
        text_add(t, "fits: rank %d needs most, %.2f of %.2f %s\n", most->rank.rank,
                 (double)most->need / unit, (double)o->have / unit, name);
}

/* ---- traffic ---- */

struct flow {
    const char *what;
    bool experts;
    unsigned along;
    int64_t calls;
    double inside, across, seconds;
};

static const char *axes_text(const struct flow *f, const struct mesh *m,
                             struct arena *a)
{
    const struct view *v = mesh_view(m, f->experts);
    struct text t = text_make(a);
    for (int i = 0; i < v->naxis; i++)
        if (f->along & ON(v->axis[i]) && v->size[i] > 1)
            text_add(&t, "%s%s %d", t.size ? " x " : "", axis_name[v->axis[i]],
                     v->size[i]);
    return t.at;
}

static struct flow flow_of(const struct plan *p, const struct step *s)
{
    const struct graph *g = p->graph;
    struct flow f = {.what = step_name[s->kind], .along = ON(AXIS_PP)};
    if (s->node >= 0) {
        const struct node *n = &g->node[s->node];
        f = (struct flow){n->kind->name, n->experts, n->along, 0, 0, 0, 0};
    } else if (s->unit >= 0 && s->kind != STEP_TIE) {
        f.experts = g->unit[s->unit].experts;
        f.along = s->along;
    }
    return f;
}

static void traffic_print(const struct outlook *o, const struct outlook_stage *s,
                          struct text *t)
{
    const struct plan *p = s->session.plan;
    struct flow *flow = NULL;
    int64_t n = 0, room = 0;
    for (int64_t i = 0; i < p->nstep; i++) {
        const struct work *w = &s->work[i];
        if (w->calls == 0)
            continue;
        struct flow f = flow_of(p, &p->step[i]);
        int64_t k = 0;
        while (k < n && (strcmp(flow[k].what, f.what) || flow[k].along != f.along ||
                         flow[k].experts != f.experts))
            k++;
        if (k == n) {
            GROW(t->arena, flow, n, room);
            flow[n++] = f;
        }
        flow[k].calls += w->calls;
        flow[k].inside += w->inside;
        flow[k].across += w->across;
        flow[k].seconds += s->cost[i];
    }
    if (n == 0)
        return;
    text_add(t, "\nmessages to rank %d, a step\n%-14s%-30s%10s%14s%14s%12s\n",
             s->rank.rank, "what", "group", "calls", "GB in node", "GB across", "ms");
    for (int64_t k = 0; k < n; k++)
        if (flow[k].inside + flow[k].across > 0)
            text_add(t, "%-14s%-30s%10lld%14.3f%14.3f%12.2f\n", flow[k].what,
                     axes_text(&flow[k], &o->crew.mesh, t->arena),
                     (long long)flow[k].calls, flow[k].inside / 1e9,
                     flow[k].across / 1e9, flow[k].seconds * 1e3);
}

/* ---- files ---- */

static void files_print(const struct outlook *o, const struct outlook_stage *s,
                        struct text *t)
{
    const struct session *x = &s->session;
    enum dtype dtype = dtype_of_export(x->recipe->checkpoint_dtype);
    struct hf_outline out = weights_outline(&x->model, dtype);
    double all = 4.0 * (double)model_parameters(&x->model, false) +
                 8.0 * (double)model_parameters(&x->model, true);
    text_add(t, "\ntraining state: %.3f GB in %d file(s), rank %d writes %.3f GB, %s\n",
             all / 1e9, o->crew.mesh.layout.world, s->rank.rank,
             (double)train_state_bytes(x) / 1e9,
             saver_snapshot(x) ? "from a copy in host memory while it trains on"
                               : "without a copy");
    const struct loader_options rows = session_rows_ahead(x);
    text_add(t, "rows: at most %.3f GB on the host of rank 0 for those of a step, %d "
                "ahead and %d sample(s) that wait\n", (double)loader_bytes(&rows) / 1e9,
             rows.ahead, rows.window);
    text_add(t, "export in %s: %.3f GB in %lld file(s) of at most %.3f GB, two buffers "
                "of %d MiB a rank\n", dtype_name[dtype], (double)out.bytes / 1e9,
             (long long)out.files, (double)out.largest / 1e9, HF_BUFFER >> 20);
}

/* ---- time ---- */

/* Of the rank with typical rows, each part by itself: what hides is not taken off. */
static void parts_print(const struct outlook *o, const struct outlook_stage *s,
                        struct text *t)
{
    struct outlook_part *part;
    int64_t n = outlook_parts(o, s, t->arena, &part);
    text_add(t, "\ntime of rank %d by itself, a step\n%-12s%12s%12s%12s%12s\n",
             s->rank.rank, "part", "TFLOP", "compute ms", "% of peak", "messages ms");
    for (int64_t i = 0; i < n; i++) {
        double share = part[i].compute > 0
                           ? part[i].flops / part[i].compute / o->hardware.peak
                           : 0;
        text_add(t, "%-12s%12.4g%12.2f%12.1f%12.2f\n", part[i].name,
                 part[i].flops / 1e12, 1e3 * part[i].compute, 100 * share,
                 1e3 * part[i].talk);
    }
}

static void stages_print(const struct outlook *o, struct text *t)
{
    text_add(t, "\nstages by themselves, a step\n%-6s%12s%12s%12s%12s%12s%14s%12s\n",
             "stage", "TFLOP", "compute ms", "talk ms", "exposed ms", "update ms",
             "GB in node", "GB across");
    for (int i = 0; i < o->stages; i++) {
        const struct outlook_stage *s = &o->stage[i];
        const struct forecast *f = &s->forecast;
        double inside = 0, across = 0;
        for (int64_t k = 0; k < s->session.plan->nstep; k++) {
            inside += s->work[k].inside;
            across += s->work[k].across;
        }
        text_add(t, "%-6d%12.4g%12.2f%12.2f%12.2f%12.2f%14.3f%12.3f\n", i,
                 s->flops / 1e12, f->compute * 1e3, f->communication * 1e3,
                 f->exposed * 1e3, f->update * 1e3, inside / 1e9, across / 1e9);
    }
}

static void time_print(const struct outlook *o, const struct outlook_stage *s,
                       struct text *t)
{
    const struct forecast *f = &s->forecast;
    const struct recipe *r = s->session.recipe;
    int world = o->crew.mesh.layout.world;
    text_add(t, "\nwork: model %.4g TFLOP a step, %.4g a rank; hardware %.4g on rank "
                "%d (full rows, all room, what runs again)\n", o->flops / 1e12,
             o->flops / 1e12 / world, s->flops / 1e12, s->rank.rank);
    text_add(t, "typical: samples of %lld token(s), images of %lld patch(es); %.0f%% "
                "of "
                "the experts' room is used, %.0f rows an expert\n",
             (long long)(r->plan_sample ? r->plan_sample : r->batch_tokens),
             (long long)(r->plan_image ? r->plan_image : r->batch_patches),
             100 * o->load.routed, o->rows);
    text_add(t, "rank %d alone: compute %.2f ms, communication %.2f ms, of it exposed "
                "%.2f ms, other waits %.2f ms, update %.2f ms\n", s->rank.rank,
             f->compute * 1e3, f->communication * 1e3, f->exposed * 1e3, f->idle * 1e3,
             f->update * 1e3);
    if (o->stages > 1)
        text_add(t, "pipeline: %d stage(s) compute nothing %.1f%% of the time (bubble, "
                    "uneven stages, exposed communication)\n", o->stages,
                 100 * o->bubble);
    text_add(t, "step: %.2f ms; %.0f tokens/s and %.1f model TFLOP/s a rank "
                "(predicted, not measured)\n", o->seconds * 1e3,
             o->tokens / o->seconds / world,
             o->flops / o->seconds / world / 1e12);
}

/* ---- what to know of it ---- */

static void straddlers_print(const struct mesh *m, const char *what, int span,
                             struct text *t)
{
    int node = m->layout.node, n = outlook_straddlers(m, span);
    if (n == 0)
        return;
    text_add(t, "note: %d of %d %s (%d rank(s) each) straddle nodes of %d rank(s), "
                "more of "
                "them than so many ranks need: what they say crosses the network", n,
             m->layout.world / span, what, span, node);
    if (span < node)
        text_add(t, "; with %d rank(s) of each node in use (node: %d in the hardware "
                    "table) none would", node - node % span, node - node % span);
    text_add(t, "\n");
}

static void notes_print(const struct outlook *o, struct text *t)
{
    const struct mesh *m = &o->crew.mesh;
    const struct layout *l = &m->layout;
    const struct model *x = &o->stage[0].session.model;
    int stage = l->world / l->pp, experts = l->ep * l->etp, row = l->cp * l->tp;
    if (l->pp > 1)
        straddlers_print(m, "stages", stage, t);
    if (experts < stage)
        straddlers_print(m, "groups of ep x etp", experts, t);
    if (row < stage && row != experts)
        straddlers_print(m, "groups of cp x tp", row, t);
    int64_t cell = (int64_t)x->config.vision.merge * x->config.vision.merge;
    if (x->config.has_vision && x->capacity.patches / cell > x->capacity.tokens)
        text_add(t, "note: batch.patches %lld make %lld feature(s), a row has places "
                    "for "
                    "%lld (batch.tokens): room and work for what cannot come\n",
                 (long long)x->capacity.patches,
                 (long long)(x->capacity.patches / cell),
                 (long long)x->capacity.tokens);
}

void outlook_print(const struct outlook *o, const struct outlook_options *options,
                   struct text *t)
{
    const struct view *v = &o->crew.mesh.dense;
    int at = options->rank >= 0 ? view_at(v, (int)options->rank, AXIS_PP) : o->largest;
    const struct outlook_stage *s = &o->stage[at];
    head_print(o, s, t);
    memory_print(o, s, t);
    files_print(o, s, t);
    traffic_print(o, s, t);
    parts_print(o, s, t);
    if (o->stages > 1)
        stages_print(o, t);
    time_print(o, s, t);
    notes_print(o, t);
    if (!options->explain)
        return;
    text_add(t, "\n");
    plan_summary(s->session.plan, t);
    text_add(t, "\n");
    plan_explain(s->session.plan, t, -1);
}
