/* layout.c - ranks and mesh from parallel.*, checked against the model. */
#include "train/layout.h"

#include "checkpoint/hf.h"
#include "train/choices.h"
#include "train/model.h"

#include <inttypes.h>

int session_ranks(const struct recipe *r)
{
    enum { MOST = 1 << 24 };            /* more is refused by the mesh */
    const int64_t ways[] = {r->parallel_pp, MAX(r->parallel_dp, 1), r->parallel_cp,
                            r->parallel_tp};
    int64_t ranks = r->parallel_ranks ? r->parallel_ranks : 1;
    for (int i = 0; i < COUNT(ways) && !r->parallel_ranks; i++)
        ranks = MIN(ranks * ways[i], MOST + 1);
    return (int)ranks;
}

static bool layout_make(const struct recipe *r, const struct mesh_limits *limits,
                        struct mesh *out)
{
    const struct layout l = {
        .world = session_ranks(r), .pp = (int)r->parallel_pp, .dp = (int)r->parallel_dp,
        .cp = (int)r->parallel_cp, .tp = (int)r->parallel_tp, .ep = (int)r->parallel_ep,
        .etp = (int)r->parallel_etp, .replicate = (int)r->parallel_replicate,
    };
    if (!mesh_make(&l, limits, out))
        return fail_more("parallel.ranks (--ranks N) says how many ranks there are") ||
               fail_in("recipe: parallel");
    int dp = out->layout.dp;
    int64_t rows = r->batch_rows;
    if (rows % dp)
        return fail("recipe: batch.rows %" PRId64 " does not divide over %d "
                    "data-parallel rank(s); nearest is %" PRId64, rows, dp,
                    MAX((rows + dp / 2) / dp, 1) * dp);
    int stage = out->layout.world / out->layout.pp;
    return !limits->features || !balances(r->vision_balance) ||
           stage <= MAX_MEMBERS ||
           fail("recipe: vision.balance images: %d rank(s) of a stage would exchange "
                "rows, at most %d can; set it to none", stage, MAX_MEMBERS);
}

/* What is about experts means nothing to a model that has none. */
static bool experts_there(const struct recipe *r, const struct model_config *c)
{
    struct arena a = arena_make("experts");
    const struct recipe_field *f;
    bool there = false;
    for (int l = 0; l < c->decoder.layers; l++)
        there |= c->decoder.moe[l];
    int n = there ? 0 : recipe_fields(&f);
    bool ok = !r->moe_overlap_shared || c->decoder.shared_hidden > 0 ||
              fail("recipe: moe.overlap_shared = true, but the model has no shared "
                   "expert");
    for (int i = 0; i < n && ok; i++) {
        bool about = !strcmp(f[i].section, "moe") || !strcmp(f[i].key, "ep") ||
                     !strcmp(f[i].key, "etp");
        char *key = arena_text(&a, "%s.%s", f[i].section, f[i].key);
        if (about && recipe_changed(r, &a, key))
            ok = fail("recipe: %s = %s, but the model has no experts", key,
                      recipe_get(r, &a, key));
    }
    arena_free(&a);
    return ok;
}

bool session_layout(const struct recipe *r, struct mesh *out)
{
    struct arena a = arena_make("layout");
    struct model_config config;
    bool ok = hf_config_read(&a, r->model_path, &config);
    if (ok) {
        struct capacity capacity = capacity_of(r, &config);
        struct mesh_limits limits = limits_of(&config, &capacity);
        limits.chunks = (int)r->parallel_chunks;
        ok = (experts_there(r, &config) && layout_make(r, &limits, out)) ||
             fail_kind(FAULT_USAGE);
    }
    arena_free(&a);
    return ok;
}
