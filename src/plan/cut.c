/* cut.c - where the model is cut into stages: as a recipe's string says, or evenly.
 *
 * Stands alone because it is all a user can get wrong about a pipeline. */
#include "plan/stage.h"

#include "base/text.h"
#include "plan/need.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

/* ---- what layers are, as a layout names them ---- */

enum sort { SORT_VISION, SORT_EMBEDDING, SORT_DECODER, SORT_HEAD, SORTS };
static const char *const sort_name[SORTS] = {"vision blocks", "embedding",
                                             "decoder layers", "head"};

/* A model is a tower that feeds (its first layer embeds patches; mergers belong to
 * another tower and go with the block before them) and one that ends in the head, whose
 * first layer embeds tokens. */
struct anatomy {
    const struct graph *graph;
    enum sort *sort;                    /* [layers] */
    bool *counted;                      /* [layers] a number in the layout counts it */
    int count[SORTS];
};

static const char *layer_tower(const struct graph *g, int layer)
{
    for (int64_t k = 0; k < g->nnode; k++)
        if (g->node[k].layer == layer)
            return g->node[k].tower;
    return "";
}

static struct anatomy anatomy_make(struct arena *a, const struct graph *g)
{
    struct anatomy x = {g, NEW(a, enum sort, g->layers), NEW(a, bool, g->layers), {0}};
    const char *last = layer_tower(g, g->layers - 1), *first = layer_tower(g, 0);
    int embedding = 0;
    while (strcmp(layer_tower(g, embedding), last) != 0)
        embedding++;
    for (int l = 0; l < g->layers; l++) {
        x.sort[l] = l < embedding           ? SORT_VISION
                    : l == g->layers - 1    ? SORT_HEAD
                    : l == embedding        ? SORT_EMBEDDING
                                            : SORT_DECODER;
        x.counted[l] = x.sort[l] != SORT_VISION ||
                       (l > 0 && strcmp(layer_tower(g, l), first) == 0);
        x.count[x.sort[l]] += x.counted[l];
    }
    return x;
}

/* ---- a layout's words ---- */

struct reader {
    const struct anatomy *model;
    const char *layout;
    bool named[SORTS];
    int next;                           /* layer to be given away */
    int *of;
};

static enum sort sort_of_letter(char c)
{
    return c == 'V' ? SORT_VISION : c == 'E' ? SORT_EMBEDDING
           : c == 'H' ? SORT_HEAD : isdigit((unsigned char)c) ? SORT_DECODER : SORTS;
}

static int left_of(const struct reader *r, enum sort sort)
{
    int left = 0;
    for (int l = r->next; l < r->model->graph->layers; l++)
        left += r->model->sort[l] == sort && r->model->counted[l];
    return left;
}

static void give(struct reader *r, int stage)
{
    r->of[r->next++] = stage;
}

/* What comes before `sort` and is nowhere named goes along. */
static bool give_unnamed(struct reader *r, enum sort sort, int stage)
{
    const struct anatomy *m = r->model;
    while (r->next < m->graph->layers && m->sort[r->next] < sort) {
        enum sort before = m->sort[r->next];
        if (r->named[before] || before == SORT_DECODER)
            return fail("stages '%s': stage %d begins with the %s while %d %s are left",
                        r->layout, stage, sort_name[sort], left_of(r, before),
                        sort_name[before]);
        give(r, stage);
    }
    return true;
}

/* `count` layers of a sort, -1: all there are, and what belongs to them. */
static bool give_sort(struct reader *r, enum sort sort, int64_t count, int stage)
{
    const struct anatomy *m = r->model;
    int left = left_of(r, sort), layers = m->graph->layers;
    if (!give_unnamed(r, sort, stage))
        return false;
    if (count > left || (count < 0 && left == 0))
        return fail("stages '%s': stage %d wants %lld %s, of %d in the model %d are "
                    "left", r->layout, stage, (long long)MAX(count, 1), sort_name[sort],
                    m->count[sort], left);
    count = count < 0 ? left : count;
    while (r->next < layers && m->sort[r->next] == sort &&
           (count > 0 || !m->counted[r->next])) {
        count -= m->counted[r->next];
        give(r, stage);
    }
    return true;
}

static bool read_stage(struct reader *r, const char *word, int stage)
{
    int first = r->next;
    for (const char *c = word; *c;) {
        enum sort sort = sort_of_letter(*c);
        if (sort == SORTS)
            return fail("stages '%s': '%c' in '%s' means nothing; a stage is made of "
                        "V, V and a number, E, a number, H", r->layout, *c, word);
        bool letter = sort != SORT_DECODER;
        char *end = (char *)c + letter;
        int64_t count = sort == SORT_VISION ? -1 : 1;
        if (isdigit((unsigned char)*end) && (sort == SORT_VISION || !letter))
            count = strtoll(end, &end, 10);
        if (!give_sort(r, sort, count, stage))
            return false;
        c = end;
    }
    return r->next > first ||
           fail("stages '%s': stage %d has nothing", r->layout, stage);
}

static bool read_layout(struct arena *a, const struct anatomy *m, const char *layout,
                        int stages, int *of)
{
    struct reader r = {.model = m, .layout = layout, .of = of};
    char **word;
    int words = text_split(a, layout, ", ", &word);
    if (words != stages)
        return fail("stages '%s': names %d stage(s), ranks x chunks is %d", layout,
                    words, stages);
    for (const char *c = layout; *c; c++)
        if (sort_of_letter(*c) != SORTS)
            r.named[sort_of_letter(*c)] = true;
    for (int s = 0; s < words; s++)
        if (!read_stage(&r, word[s], s))
            return false;
    if (!r.named[SORT_HEAD] && r.next == m->graph->layers - 1)
        give(&r, stages - 1);
    if (r.next < m->graph->layers)
        return fail("stages '%s': %d of %d %s are on no stage", layout,
                    left_of(&r, m->sort[r.next]), m->count[m->sort[r.next]],
                    sort_name[m->sort[r.next]]);
    return true;
}

char *stages_text(struct arena *a, const struct graph *g, const struct stages *s)
{
    struct arena scratch = arena_make("stages");
    struct anatomy m = anatomy_make(&scratch, g);
    struct text t = text_make(a);
    for (int stage = 0, l = 0; stage < s->ranks * s->chunks; stage++) {
        int count[SORTS] = {0};
        for (; l < g->layers && s->of[l] == stage; l++)
            count[m.sort[l]] += m.counted[l];
        text_add(&t, stage ? "," : "");
        if (count[SORT_VISION] > 0 && count[SORT_VISION] == m.count[SORT_VISION])
            text_add(&t, "V");
        else if (count[SORT_VISION] > 0)
            text_add(&t, "V%d", count[SORT_VISION]);
        text_add(&t, count[SORT_EMBEDDING] ? "E" : "");
        if (count[SORT_DECODER] > 0)
            text_add(&t, "%d", count[SORT_DECODER]);
        text_add(&t, count[SORT_HEAD] ? "H" : "");
    }
    arena_free(&scratch);
    return t.at;
}

/* ---- evenly ---- */

static struct tensor bare(const struct value *v)
{
    return tensor_dense(NULL, v->dtype, v->ndim, v->dim);
}

double node_flops(const struct graph *g, const struct node *n)
{
    struct work work = {0};
    struct stream stream = {.work = &work};
    struct run r = {.ops = &ops_dry, .stream = &stream, .attr = n->attr};
    if (n->kind->lane != LANE_COMPUTE || n->along != 0)
        return 0;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] != NONE)
            r.in[i] = bare(&g->value[n->in[i]]);
    for (int i = 0; i < n->nout; i++)
        if (n->out[i] != NONE)
            r.out[i] = bare(&g->value[n->out[i]]);
    for (int i = 0; i < n->nw; i++)
        if (n->w[i] != NONE)
            r.w[i] = tensor_dense(NULL, unit_dtype(g, g->param[n->w[i]].unit),
                                  g->param[n->w[i]].nrows, g->param[n->w[i]].rows);
    if (n->work > 0)
        r.work = tensor_1d(NULL, DTYPE_U8, n->work);
    n->kind->forward(&r);
    return work.flops;
}

double *stages_work(struct arena *a, const struct graph *g)
{
    struct arena scratch = arena_make("stages");
    double *work = NEW(a, double, g->layers);
    struct policy plain = policy_plain();
    struct need d = need_make(&scratch, g, &plain, &(struct need_options){
        .backward = true});
    for (int64_t k = 0; k < g->nnode; k++) {
        const struct node *n = &g->node[k];
        int passes = 1 + d.weight[k] + (d.backward[k] ? 1 + n->kind->fused : 0);
        work[n->layer] += passes * node_flops(g, n);
    }
    arena_free(&scratch);
    return work;
}

/* May a stage begin with this layer?  What is not counted stays with its block. */
static bool may_begin(const struct anatomy *m, int layer)
{
    return m->counted[layer] && (layer != 1 || m->counted[0]);
}

/* Of the best way to put the first l layers on the first s stages: the work of its
 * largest stage, and among equals the sum of squares; where the last stage begins. */
struct cost { double most, squares; int cut; };

static struct cost cost_best(const struct anatomy *m, const struct cost *fewer,
                             const double *before, int layer)
{
    struct cost best = {INFINITY, INFINITY, 0};
    for (int cut = 0; cut < layer; cut++) {
        if (cut > 0 && !may_begin(m, cut))
            continue;
        double own = before[layer] - before[cut];
        struct cost x = {MAX(fewer[cut].most, own), fewer[cut].squares + own * own,
                         cut};
        if (x.most < best.most || (x.most <= best.most && x.squares < best.squares))
            best = x;
    }
    return best;
}

static void cut_evenly(struct arena *scratch, const struct anatomy *m,
                       const double *work, int stages, int *of)
{
    int layers = m->graph->layers;
    double *before = NEW(scratch, double, layers + 1);
    struct cost *cost = NEW(scratch, struct cost, (stages + 1) * (layers + 1));
    for (int l = 0; l < layers; l++)
        before[l + 1] = before[l] + work[l];
    for (int l = 1; l <= layers; l++)
        cost[l] = (struct cost){INFINITY, INFINITY, 0};         /* no stage, no layer */
    for (int s = 1; s <= stages; s++) {
        struct cost *row = cost + s * (layers + 1);
        for (int l = 0; l <= layers; l++)
            row[l] = cost_best(m, row - (layers + 1), before, l);
    }
    for (int s = stages, l = layers; s > 0; s--) {
        int cut = cost[s * (layers + 1) + l].cut;
        while (l > cut)
            of[--l] = s - 1;
    }
}

bool stages_make(struct arena *a, const struct graph *g, int ranks, int chunks,
                 const char *layout, const double *work, struct stages *out)
{
    REQUIRE(ranks >= 1 && chunks >= 1);
    *out = (struct stages){ranks, chunks, NEW(a, int, g->layers)};
    int stages = ranks * chunks;
    struct arena scratch = arena_make("stages");
    struct anatomy m = anatomy_make(&scratch, g);
    int pieces = 1;
    for (int l = 1; l < g->layers; l++)
        pieces += may_begin(&m, l);
    bool ok = true;
    if (pieces < stages)
        ok = fail("stages: %d rank(s) x %d chunk(s) are more than the %d piece(s) the "
                  "model "
                  "can be cut into", ranks, chunks, pieces);
    else if (layout && *layout)
        ok = read_layout(&scratch, &m, layout, stages, out->of);
    else
        cut_evenly(&scratch, &m, work ? work : stages_work(&scratch, g), stages,
                   out->of);
    arena_free(&scratch);
    return ok || fail_kind(FAULT_USAGE);
}
