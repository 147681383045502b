/* outlook.c - plans one rank of each stage and adds up what the plans say. */
#include "outlook/outlook.h"

#include "recipe/hardware.h"
#include "train/data.h"
#include "train/layout.h"
#include "train/saver.h"

/* ---- what a typical batch is, as the recipe says (plan.sample, plan.image) ---- */

struct typical { double tokens, patches, sample, image; };      /* two of a row */

/* No row holds a larger sample or image than itself. */
static bool typical_fits(const struct recipe *r, const struct model_config *c)
{
    if (r->plan_sample > r->batch_tokens)
        fail("plan: plan.sample %lld: no row of batch.tokens %lld holds such a sample",
             (long long)r->plan_sample, (long long)r->batch_tokens);
    else if (c->has_vision && r->plan_image > r->batch_patches)
        fail("plan: plan.image %lld: no row of batch.patches %lld holds such an image",
             (long long)r->plan_image, (long long)r->batch_patches);
    else
        return true;
    return fail_kind(FAULT_USAGE);
}

static struct typical typical_of(const struct recipe *r, const struct model *m)
{
    struct typical x = {.tokens = (double)m->capacity.tokens};
    x.patches = m->config.has_vision ? (double)m->capacity.patches : 0;
    x.sample = r->plan_sample ? (double)r->plan_sample : x.tokens;
    x.image = r->plan_image ? MIN((double)r->plan_image, x.patches) : x.patches;
    return x;
}

/* A row is full of such samples; all text carries loss. */
static struct flops_count counts_of(const struct typical *x, const struct model *m)
{
    double cell = m->config.vision.merge * m->config.vision.merge;
    double merged = x->patches > 0 ? MIN(x->patches / cell, x->tokens) : 0;
    return (struct flops_count){
        .tokens = x->tokens, .supervised = x->tokens - merged,
        .attention = x->tokens * (x->sample + 1) / 2,
        .patches = merged * cell, .attention_image = merged * cell * x->image,
        .merged = merged,
    };
}

/* Rows that a rank's experts get where all are chosen equally often. */
static double experts_rows(const struct model *m, const struct mesh *mesh)
{
    const struct layout *l = &mesh->layout;
    double tokens = (double)m->capacity.tokens / (l->cp * l->tp);
    return tokens * m->config.decoder.active * l->etp;
}

static struct workload workload_of(const struct recipe *r, const struct model *m,
                                   const struct mesh *mesh)
{
    struct typical x = typical_of(r, m);
    /* Pairs within the images that a rank encodes, of all that it has room for. */
    double encoded = x.patches / (m->balanced ? mesh->layout.cp : 1);
    double room = (double)m->encodes;
    int64_t rows = graph_experts_room(&m->graph);
    return (struct workload){
        .attention = (x.sample + 1) / (x.tokens + 1),
        .vision_attention = room > 0 ? x.image * encoded / room / room : 1,
        .routed = rows > 0 ? MIN(1, experts_rows(m, mesh) / (double)rows) : 1,
    };
}

/* ---- one stage ---- */

struct job {
    struct outlook *o;
    const struct recipe *recipe;
    int first;                          /* stage of index 0 */
};

/* Rank 0 has the rows; where ranks share a host's memory each bears its part. */
static int64_t loader_share(const struct outlook_stage *s, int world)
{
    const struct loader_options rows = session_rows_ahead(&s->session);
    return loader_bytes(&rows) / world;
}

static void stage_cost(struct outlook_stage *s, const struct outlook *o,
                       const struct workload *load)
{
    struct arena *a = &s->session.arena;
    const struct plan *p = s->session.plan;
    s->work = NEW(a, struct work, p->nstep);
    s->cost = NEW(a, double, p->nstep);
    s->talk = NEW(a, double, p->nstep);
    plan_work(p, s->work);
    s->need = p->bytes;
    if (o->hardware.memory <= 0)        /* the device's memory is the host's */
        s->need += p->host_bytes + saver_snapshot(&s->session) +
                   loader_share(s, o->crew.mesh.layout.world);
    for (int64_t i = 0; i < p->nstep; i++)
        s->flops += s->work[i].flops;
    plan_cost(p, s->work, &o->hardware, load, s->cost, s->talk);
    s->forecast = plan_forecast(p, a, s->cost, s->talk, update_cost(p, &o->hardware));
}

static void stage_open(void *arg, int64_t i)
{
    const struct job *j = arg;
    struct outlook *o = j->o;
    struct outlook_stage *s = &o->stage[j->first + i];
    s->ok = session_preview(&s->session, j->recipe, o->hardware.compute, &s->rank,
                            &o->crew);
    if (!s->ok) {
        fail_take(&s->why);
        fail_clear();
        return;
    }
    struct workload load = workload_of(j->recipe, &s->session.model, &o->crew.mesh);
    stage_cost(s, o, &load);
    if (j->first + i == 0)
        o->load = load;                 /* every rank records the whole model */
}

/* As many at a time as there are threads; what comes of it does not depend on that. */
static bool stages_open(struct outlook *o, const struct recipe *r, bool fitting)
{
    int pp = o->crew.mesh.layout.pp;
    struct team *team = team_make(pp == 1);
    int threads = team_threads(team);
    bool ok = true, enough = false;
    while (ok && !enough && o->stages < pp) {
        struct job job = {o, r, o->stages};
        int n = MIN(threads, pp - o->stages);
        team_for(team, n, stage_open, &job);
        for (int i = 0; i < n && ok && !enough; i++) {
            struct outlook_stage *s = &o->stage[o->stages];
            ok = s->ok || fail_raise(&s->why);
            if (ok && s->need > o->stage[o->largest].need)
                o->largest = o->stages;
            o->stages += ok;
            enough = fitting && s->need > o->have;
        }
    }
    team_free(team);
    return ok;
}

/* ---- all of them ---- */

static bool time_all(struct outlook *o)
{
    const struct plan **plan = NEW(&o->arena, const struct plan *, o->stages);
    const double **cost = NEW(&o->arena, const double *, o->stages);
    struct pipe_prediction whole;
    double update = 0;
    for (int i = 0; i < o->stages; i++) {
        plan[i] = o->stage[i].session.plan;
        cost[i] = o->stage[i].cost;
        update = MAX(update, o->stage[i].forecast.update);
    }
    o->seconds = o->stage[0].forecast.seconds;
    if (o->stages == 1)
        return true;
    if (!pipe_simulate(plan, o->stages, cost, &whole))
        return false;
    o->seconds = whole.seconds + update;
    o->bubble = whole.bubble;
    return true;
}

/* Nodes that ranks [first, first + span) touch beyond what so many need. */
static int nodes_beyond(const struct mesh *m, int first, int span)
{
    int node = m->layout.node, last = first + span - 1;
    return node > 0 ? last / node - first / node - (span - 1) / node : 0;
}

int outlook_straddlers(const struct mesh *m, int span)
{
    int n = 0;
    for (int at = 0; at < m->layout.world; at += span)
        n += nodes_beyond(m, at, span) > 0;
    return n;
}

/* All ranks of a stage wait for one whose experts are shared across nodes, or whose
 * tokens are. */
static int stage_slowest(const struct mesh *m, int stage)
{
    const struct layout *l = &m->layout;
    int each = l->world / l->pp, from = stage * each;
    const int span[] = {l->ep * l->etp, l->cp * l->tp};
    for (int k = 0; k < COUNT(span); k++)
        for (int at = from; at < from + each; at += span[k])
            if (nodes_beyond(m, at, span[k]) > 0)
                return at;
    return from;
}

bool outlook_open(struct outlook *o, const struct recipe *r,
                  const struct outlook_options *options)
{
    *o = (struct outlook){.arena = arena_make("outlook")};
    if (r->moe_capacity > 0 && r->moe_capacity < 1) {
        fail("plan: with moe.capacity %g not even equal shares of the rows have room: "
             "every step would run again; plan what it grows to, 1 or more",
             r->moe_capacity);
        return fail_kind(FAULT_USAGE);
    }
    const char *name = options->hardware ? options->hardware : r->plan_hardware;
    if (!hardware_read(&o->arena, name, &o->hardware) ||
        !session_layout(r, &o->crew.mesh))
        return false;
    o->crew.mesh.layout.node = (int)o->hardware.node;
    const struct layout *l = &o->crew.mesh.layout;
    const struct hardware *h = &o->hardware;
    o->have = h->memory > 0 ? (int64_t)(h->memory - h->reserve)
                            : device_memory_free() / l->world;  /* ranks are threads */
    if (options->rank >= l->world) {
        fail("plan: there is no rank %lld of %d rank(s), numbered from 0",
             (long long)options->rank, l->world);
        return fail_kind(FAULT_USAGE);
    }
    o->stage = NEW(&o->arena, struct outlook_stage, l->pp);
    for (int i = 0, each = l->world / l->pp; i < l->pp; i++) {
        bool shown = options->rank >= 0 && options->rank / each == i;
        o->stage[i].rank = (struct rank){
            .rank = shown ? (int)options->rank : stage_slowest(&o->crew.mesh, i),
            .ranks = l->world};
    }
    if (!stages_open(o, r, options->fitting))
        return false;
    const struct model *m = &o->stage[0].session.model;
    if (!typical_fits(r, &m->config))
        return false;
    struct typical x = typical_of(r, m);
    struct flops_count n = counts_of(&x, m);
    o->tokens = x.tokens * (double)r->batch_rows;
    if (graph_experts_room(&m->graph) > 0)
        o->rows = experts_rows(m, &o->crew.mesh) * l->ep / m->config.decoder.experts;
    o->flops = model_flops(&m->config, &n, m->frozen) * (double)r->batch_rows;
    return o->stages < l->pp || time_all(o);
}

void outlook_close(struct outlook *o)
{
    for (int i = 0; o->stage && i < o->crew.mesh.layout.pp; i++)
        session_close(&o->stage[i].session);
    arena_free(&o->arena);
}

bool outlook_fits(const struct outlook *o)
{
    return o->stage[o->largest].need <= o->have;
}

static bool refused(const struct outlook *o)
{
    const struct outlook_stage *s = &o->stage[o->largest];
    const struct plan *p = s->session.plan;
    bool state = p->state_bytes > o->have, alone = o->crew.mesh.layout.world == 1;
    const char *name;
    double unit = outlook_unit(s->need, &name);
    fail("plan: rank %d needs %.2f %s, on %s %.2f are free; %s", s->rank.rank,
         (double)s->need / unit, name, o->hardware.name, (double)o->have / unit,
         state && alone ? "weights, gradients and optimizer alone exceed it: freeze "
                          "parts (model.freeze), divide them over ranks (parallel.*) "
                          "or take a smaller model"
         : state ? "weights, gradients and optimizer alone exceed it: divide them more "
                   "(parallel.shard, ep, pp, tp), take more ranks or freeze parts "
                   "(model.freeze)"
                 : "lower batch.tokens or batch.patches, or set memory.recompute");
    return fail_kind(FAULT_MEMORY);
}

bool outlook(const struct recipe *r, const struct outlook_options *options,
             struct text *t)
{
    struct outlook o;
    if (!session_look(r, false))
        return false;
    bool ok = outlook_open(&o, r, options);
    if (ok) {
        if (options->json)
            outlook_json(&o, t);
        else
            outlook_print(&o, options, t);
        for (int i = 0; i < o.stages && options->explain; i++)
            if (!plan_check(o.stage[i].session.plan))
                BUG("%s", fail_message());
        ok = outlook_fits(&o) || refused(&o);
    }
    outlook_close(&o);
    return ok;
}
