/* matrix.h - layouts x policies x freezes x rows, one line each, each against one rank.
 *
 * A line is words:
 *     +                  in the everyday run, too
 *     =                  the very bits of the last line without this mark
 *     pp2 dp2 cp2 tp2 ep2 etp2 copies2 chunks2        the layout, 1 where not named
 *     optimizer gradients parameters                  what is divided; nothing
 *     each prefetch0 keep weave overlap delay lanes slack             and the policy
 *     recompute:LIST offload:LIST zb stages:LIST ring allgather
 *     bias               experts are chosen with a router bias
 *     room:N             moe.capacity; where it is too small the step runs again
 *     images images:N    are shared out over dp x cp; vision.capacity: where it is too
 *                        small the plan grows before the step
 *     -vision ...        parts that are frozen
 *     golden tied shared another model
 *     stamps             the one that reads real images, with rows of them
 *     bf16 lean          computed so, with masters; with nothing f32 but routers
 *     rows:NAME          of sets[]; mixed */
#ifndef TESTS_EQUAL_MATRIX_H
#define TESTS_EQUAL_MATRIX_H

#include "equal/layouts.h"
#include "equal/stamps.h"

/* Images of row 0, 1, ...; -n: n - 1 images and nothing supervised (layout_rows).  Rows
 * go round the data-parallel ranks, so with two of them rows 0 and 1 are the first
 * microbatch. */
static const struct row_set { const char *name; int count, images[8]; } sets[] = {
    {"mixed", 4, {1, 2, 0, 3}},
    {"1-0", 4, {1, 0, 0, 0}},
    {"0-1", 4, {0, 1, 0, 0}},
    {"0-0", 4, {0, 0, 0, 0}},
    {"2-0", 4, {2, 0, 0, 0}},
    {"0-3", 4, {0, 3, 0, 0}},
    {"late", 4, {0, 0, 2, 1}},          /* images in one microbatch only */
    {"mute", 4, {1, -3, -1, 2}},        /* rows without supervised tokens */
    {"idle", 4, {1, -2, 2, -1}},        /* a rank without */
    {"silent", 4, {-2, -1, -4, -1}},    /* a step without */
    {"eight", 8, {1, 0, 3, -1, 2, 0, -2, 1}},
    {"many", 4, {5, 1, 0, 2}},
    {"large", 4, {LARGE, 1, 0, 3}},     /* of very different size */
    {"full", 4, {LARGE + 1, LARGE + 2, LARGE + 1, LARGE + 2}},  /* no room elsewhere */
    {"stamps", 8, {0}},                 /* stamps_rows() */
};

static const char *const matrix[] = {
    /* data parallel: what is divided, and when it moves */
    "+ dp2",
    "+ = dp2 lanes",
    "= dp2 weave lanes",
    "= dp2 recompute:decoder.* offload:vision.*",
    "= dp2 optimizer",
    "+ = dp2 optimizer prefetch3 lanes slack",
    "= dp2 gradients lanes",
    "+ = dp2 parameters",
    "+ = dp2 parameters lanes",
    "= dp2 parameters prefetch0",
    "= dp2 parameters prefetch4 lanes",
    "+ = dp2 parameters keep lanes",
    "= dp2 parameters weave lanes",
    "+ = dp2 parameters recompute:* lanes",
    "= dp2 parameters recompute:act,norm offload:decoder.qkv",
    "+ = dp2 parameters offload:* lanes slack",
    "+ dp2 gradients each",
    "= dp2 parameters each lanes",
    "+ = dp2 parameters each weave lanes recompute:vision.*",
    "= dp2 parameters each offload:* prefetch3",
    "dp4 rows:eight",
    "= dp4 optimizer lanes rows:eight",
    "= dp4 gradients weave lanes rows:eight",
    "= dp4 parameters lanes rows:eight",
    "= dp4 parameters weave recompute:* lanes rows:eight",
    "+ dp4 parameters each lanes rows:eight",
    "= dp4 gradients each rows:eight",
    "= dp4 optimizer each weave lanes rows:eight",
    "+ dp4 parameters golden",
    "dp2 optimizer golden lanes",
    "dp2 parameters tied lanes",
    "dp2 gradients -vision",
    "+ dp2 parameters -vision -projector lanes",
    "+ dp2 optimizer -decoder recompute:*",
    "+ dp2 parameters -router -experts lanes",
    "dp4 parameters -vision -projector weave rows:eight",
    /* copies of shards */
    "dp4 copies2 rows:eight",
    "dp4 copies2 optimizer lanes rows:eight",       /* sums copy by copy */
    "= dp4 copies2 gradients rows:eight",
    "= dp4 copies2 parameters rows:eight",
    "= dp4 copies2 parameters weave keep lanes rows:eight",
    "+ dp4 copies2 parameters each lanes rows:eight",
    "= dp4 copies2 gradients each recompute:decoder.* rows:eight",
    "+ dp4 copies2 parameters -decoder lanes",
    "dp4 copies4 parameters lanes golden",
    /* tensor and sequence parallel */
    "+ tp2",
    "= tp2 lanes",
    "= tp2 weave lanes slack",
    "+ = tp2 recompute:* lanes",
    "= tp2 recompute:norm,act offload:decoder.qkv",
    "+ tp4 lanes",
    "+ tp2 golden lanes",
    "tp2 tied lanes",
    "tp2 -vision",
    "tp2 -vision -projector lanes",
    "tp2 -decoder lanes",
    "tp2 -router -experts",
    "+ dp2 tp2 parameters lanes",
    "+ = dp2 tp2 gradients weave",
    "= dp2 tp2 parameters keep recompute:* lanes",
    "dp2 tp4 parameters each lanes",
    "dp4 tp2 copies2 parameters lanes",
    /* context parallel */
    "+ cp2",
    "= cp2 lanes",
    "= cp2 recompute:* weave lanes",
    "+ = cp2 offload:* lanes",
    "+ cp2 ring",
    "= cp2 ring lanes",
    "= cp2 ring recompute:* offload:vision.*",
    "= cp2 ring weave lanes slack",
    "cp4 lanes",
    "+ cp4 ring lanes",
    "cp2 golden",
    "cp2 ring tied lanes",
    "cp2 -vision -projector lanes",
    "cp2 ring -decoder",
    "cp2 -router -experts lanes",
    "dp2 cp2 parameters lanes",
    "dp2 cp2 ring parameters each weave",
    "cp2 tp2 lanes",
    "+ cp2 ring tp2 recompute:decoder.*",
    "dp2 cp2 tp2 optimizer lanes",
    /* expert parallel */
    "+ dp2 ep2",
    "= dp2 ep2 lanes",
    "+ = dp2 ep2 parameters weave lanes",
    "= dp2 ep2 recompute:* lanes",
    "= dp2 ep2 gradients offload:*",
    "dp2 ep2 allgather",
    "+ = dp2 ep2 allgather parameters lanes",
    "= dp2 ep2 allgather recompute:* weave",
    "+ dp4 ep4 parameters lanes",
    "dp4 ep4 allgather optimizer",
    "dp4 ep2 parameters each lanes rows:eight",
    "dp2 ep2 golden lanes",
    "dp2 ep2 parameters -vision",
    "dp2 ep2 -router -experts lanes",
    "dp2 ep2 parameters -decoder lanes",
    "+ dp2 etp2",
    "= dp2 etp2 allgather lanes parameters",
    "tp2 etp2 lanes",
    "dp2 etp2 golden lanes",
    "tp2 ep2 lanes",
    "cp2 ep2 ring lanes",
    "dp4 copies2 ep2 parameters lanes",
    "+ dp4 ep2 etp2 parameters lanes",
    "dp2 tp2 ep4 parameters",
    "+ dp2 cp2 tp2 ep4 parameters lanes",
    "= dp2 cp2 tp2 ep4 weave recompute:* lanes",
    "dp2 cp2 tp2 ep8 lanes",
    "dp2 cp2 tp2 ep2 etp2 allgather parameters each",
    "dp4 cp2 tp2 ep4 etp2 parameters lanes",
    "dp4 cp2 tp2 copies2 ep8 optimizer lanes",
    /* shared experts, and what hides behind the rows' way to the others */
    "+ dp2 shared",
    "= dp2 shared recompute:* lanes",
    "+ = dp2 shared parameters recompute:shared_act offload:shared_gu lanes",
    "= dp2 shared overlap delay lanes",
    "dp2 shared -experts lanes",
    "dp2 shared parameters -router -decoder",
    "+ tp2 shared lanes",
    "= tp2 shared delay lanes",
    "= tp2 shared recompute:* weave delay lanes",
    "tp2 shared -experts",
    "tp4 shared parameters lanes",
    "cp2 shared lanes",
    "+ dp2 ep2 shared parameters lanes",
    "+ = dp2 ep2 shared overlap lanes",
    "= dp2 ep2 shared overlap delay parameters lanes slack",
    "= dp2 ep2 shared overlap weave recompute:* lanes",
    "= dp2 ep2 shared overlap weave delay offload:* lanes",
    "dp2 ep2 shared -experts lanes",
    "= dp2 ep2 shared -experts overlap delay lanes",
    "dp2 ep2 allgather shared",
    "+ = dp2 ep2 allgather shared overlap delay lanes",
    "= dp2 ep2 allgather shared overlap recompute:* lanes",
    "dp2 etp2 shared",
    "= dp2 etp2 shared overlap lanes",
    "dp4 ep2 etp2 shared",
    "= dp4 ep2 etp2 shared overlap delay lanes",
    "dp2 tp2 ep4 shared parameters each lanes",
    "= dp2 tp2 ep4 shared parameters each overlap lanes",
    "= dp2 tp2 ep4 shared parameters each overlap weave delay lanes",
    "dp2 tp2 ep2 etp2 allgather shared",
    "= dp2 tp2 ep2 etp2 allgather shared overlap delay lanes",
    "pp2 shared lanes",
    "pp2 zb shared -router lanes",
    "pp2 dp2 ep2 chunks2 shared rows:eight",
    "= pp2 dp2 ep2 chunks2 shared overlap weave delay lanes rows:eight",
    "pp2 dp2 ep2 zb shared rows:eight",
    "= pp2 dp2 ep2 zb shared overlap lanes rows:eight",
    "+ pp2 dp2 cp2 tp2 ep4 shared parameters lanes",
    "= pp2 dp2 cp2 tp2 ep4 shared recompute:* gradients",
    "+ = pp2 dp2 cp2 tp2 ep4 shared overlap delay optimizer lanes",
    /* pipeline */
    "+ pp2",
    "= pp2 lanes",
    "= pp2 weave lanes",
    "= pp2 recompute:* lanes",
    "= pp2 offload:* lanes slack",
    "+ pp2 zb",
    "= pp2 zb lanes recompute:decoder.*",
    "pp4 lanes",
    "pp4 zb lanes rows:eight",
    "+ pp2 chunks2",
    "= pp2 chunks2 lanes recompute:*",
    "pp2 chunks2 zb lanes rows:eight",
    "pp2 golden lanes",
    "pp2 tied lanes",
    "+ pp4 tied lanes zb",
    "pp2 stages:V,4H lanes",
    "pp2 -vision lanes",
    "+ pp2 -vision -projector",
    "pp2 -decoder lanes",
    "pp2 zb -router -experts lanes",
    "+ pp2 dp2",
    "+ = pp2 dp2 parameters lanes",
    "= pp2 dp2 gradients weave",
    "pp2 dp2 parameters each zb lanes rows:eight",
    "pp2 tp2 lanes",
    "pp2 cp2 ring lanes zb",
    "pp2 dp2 ep2 chunks2 lanes rows:eight",
    "pp2 chunks3 lanes rows:eight",
    "= pp2 chunks3 recompute:vision.* offload:decoder.qkv rows:eight",
    "pp4 chunks2 lanes rows:eight",
    "pp2 dp2 chunks2 parameters keep weave lanes rows:eight",
    "= pp2 dp2 chunks2 parameters prefetch0 rows:eight",
    "pp3 stages:V2,V3,4H lanes",
    "pp4 stages:V,1,2,1H zb lanes",
    "pp2 etp2 dp2 allgather lanes",
    /* up to five axes at once */
    "pp2 dp2 tp2 parameters lanes",
    "pp2 dp2 cp2 parameters lanes tied",
    "pp2 dp2 tp2 ep4 parameters each lanes",
    "pp2 cp2 tp2 ep4 lanes",
    "+ pp2 dp2 cp2 tp2 ep4 parameters lanes",
    "= pp2 dp2 cp2 tp2 ep4 recompute:* gradients lanes",
    "+ pp2 dp2 cp2 tp2 ep4 ring zb optimizer lanes",
    "pp2 dp2 cp2 tp2 ep2 etp2 allgather parameters each lanes",
    "pp2 dp2 cp2 tp2 copies2 ep4 chunks2 parameters lanes",
    "pp2 dp2 cp2 tp2 ep4 -vision -projector parameters lanes",
    "pp4 dp2 tp2 ep2 parameters zb lanes",
    /* uneven images */
    "dp2 parameters lanes rows:1-0",
    "+ dp2 parameters -vision rows:1-0",
    "dp2 parameters -vision -projector rows:1-0",
    "dp2 parameters recompute:* rows:1-0",
    "dp2 parameters lanes rows:0-1",
    "dp2 parameters -vision rows:0-1",
    "dp2 parameters -vision -projector rows:0-1",
    "+ dp2 parameters recompute:* rows:0-1",
    "+ dp2 parameters lanes rows:0-0",
    "dp2 parameters -vision rows:0-0",
    "+ dp2 parameters -vision -projector rows:0-0",
    "dp2 parameters recompute:* rows:0-0",
    "dp2 parameters lanes rows:2-0",
    "dp2 parameters -vision rows:2-0",
    "dp2 parameters -vision -projector rows:2-0",
    "dp2 parameters recompute:* rows:2-0",
    "+ dp2 parameters lanes rows:0-3",
    "dp2 parameters -vision rows:0-3",
    "dp2 parameters -vision -projector rows:0-3",
    "dp2 parameters recompute:* rows:0-3",
    "dp2 parameters each lanes rows:late",
    "dp2 parameters -vision rows:late",
    "dp2 parameters -vision -projector rows:late",
    "+ dp2 parameters each recompute:* rows:late",
    "dp2 tp2 parameters rows:0-0",
    "dp2 cp2 ring lanes rows:0-3",
    "dp2 ep2 lanes rows:1-0",
    "+ pp2 dp2 lanes rows:0-0",
    "pp2 dp2 parameters zb lanes rows:0-3",
    "pp2 tp2 lanes rows:late",
    "+ dp2 cp2 tp2 ep4 parameters lanes rows:2-0",
    /* real images, packed */
    "+ dp2 parameters stamps lanes",
    "= dp2 optimizer recompute:* stamps",
    "dp4 copies2 parameters each stamps lanes",
    "dp4 parameters -vision -projector stamps lanes",
    "+ dp2 tp2 ep4 parameters stamps lanes",
    "cp4 ring stamps lanes",
    "+ dp2 cp2 stamps optimizer",
    "pp2 dp2 zb stamps parameters lanes",
    "pp4 chunks2 stamps lanes",
    "dp2 ep2 allgather stamps lanes",
    "+ pp2 dp2 cp2 tp2 ep4 parameters stamps lanes",
    "pp2 dp2 cp2 tp2 ep2 etp2 allgather parameters each -decoder stamps lanes",
    /* computed in bf16 */
    "+ dp2 bf16",
    "+ = dp2 parameters weave recompute:* lanes bf16",
    "dp4 copies2 gradients each lanes bf16 rows:eight",
    "+ tp2 golden lanes bf16",
    "+ cp2 bf16",
    "= cp2 offload:* recompute:decoder.* lanes bf16",
    "+ cp2 ring tp2 bf16",
    "+ dp4 ep2 etp2 parameters lanes bf16",
    "= dp4 ep2 etp2 optimizer recompute:* bf16",
    "+ pp2 dp2 cp2 tp2 ep4 shared parameters lanes bf16",
    "+ = pp2 dp2 cp2 tp2 ep4 shared overlap delay optimizer lanes bf16",
    "+ dp2 tp2 images parameters stamps lanes bf16",
    "+ dp2 ep2 room:0.25 bias lanes bf16",
    "+ dp2 parameters lean",
    "+ = dp2 optimizer weave recompute:* lanes lean",
    "+ = dp2 lanes lean",
    "+ pp2 tp2 zb tied lean",
    "dp2 cp2 ring ep2 -vision parameters lanes lean",
    /* other choices of experts, and experts without room */
    "dp2 ep2 bias lanes",
    "= dp2 ep2 parameters recompute:* bias",
    "+ pp2 dp2 tp2 ep4 parameters bias lanes",
    "cp2 ep2 allgather bias lanes",
    "+ dp2 ep2 room:0.25 lanes",
    "= dp2 ep2 room:0.25 parameters recompute:decoder.*",
    "dp4 ep4 room:0.5 parameters each lanes",
    "dp2 ep2 allgather room:0.25 lanes",
    "dp2 tp2 ep4 room:0.25 optimizer lanes",
    "+ pp2 dp2 cp2 ep4 room:0.25 bias parameters zb lanes",
    "dp2 ep2 room:0.25 stamps lanes",
    "pp2 dp2 chunks2 ep2 room:0.5 weave lanes rows:eight",
    /* images shared out over ranks */
    "+ dp2 images",
    "= dp2 images lanes",
    "= dp2 images recompute:* weave lanes",
    "+ = dp2 images parameters offload:* lanes slack",
    "= dp2 images gradients recompute:vision.*",
    "dp2 images parameters lanes rows:1-0",
    "dp2 images lanes rows:0-1",
    "+ dp2 images lanes rows:0-0",
    "dp2 images lanes rows:2-0",
    "dp2 images lanes rows:0-3",
    "dp2 images parameters each lanes rows:late",
    "dp2 images rows:large",
    "+ dp2 images lanes rows:full",
    "dp2 images lanes rows:silent",
    "dp2 images golden parameters lanes",
    "dp2 images tied",
    "+ dp4 images parameters lanes rows:many",
    "= dp4 images gradients weave rows:many",
    "= dp4 images optimizer recompute:* lanes rows:many",
    "dp4 images lanes rows:full",
    "dp4 images lanes rows:large",
    "dp4 images lanes rows:0-0",
    "dp4 images parameters each lanes rows:eight",
    "dp4 copies2 images parameters lanes rows:many",
    "= dp4 copies2 images gradients rows:many",
    "dp4 copies2 images -vision -projector lanes rows:large",
    "dp2 images -vision rows:many",
    "+ dp2 images -vision -projector parameters lanes rows:large",
    "dp2 images -decoder -embeddings -router -experts lanes",
    "dp2 images -projector recompute:*",
    "+ cp2 images",
    "= cp2 images lanes",
    "= cp2 images recompute:* offload:vision.*",
    "cp2 images ring lanes rows:large",
    "cp2 images ring -vision -projector rows:0-3",
    "cp2 images lanes rows:full",
    "cp4 images ring lanes rows:many",
    "cp4 images:1.5 lanes rows:many",
    "+ cp2 images:1.25 recompute:* lanes rows:many",
    "dp4 images:0.6 parameters lanes rows:many",
    "dp2 cp2 tp2 images:1.25 parameters lanes rows:many",
    "pp2 dp2 cp2 images:1.1 zb lanes rows:0-3",
    "+ pp2 dp2 images:0.2 lanes rows:many",
    "dp2 cp2 ep2 images:0.1 room:0.25 parameters lanes rows:large",
    "cp2 tp2 images lanes rows:many",
    "tp2 images lanes",
    "+ dp2 tp2 images parameters lanes rows:large",
    "= dp2 tp2 images recompute:* weave rows:large",
    "dp2 tp4 images lanes rows:many",
    "dp2 tp2 images -vision lanes rows:0-3",
    "dp2 tp2 images lanes rows:full",
    "dp2 cp2 images parameters lanes rows:many",
    "= dp2 cp2 images recompute:* rows:many",
    "dp2 cp2 ring images lanes rows:0-0",
    "dp4 cp2 images optimizer lanes rows:large",
    "dp2 tp2 ep4 images parameters lanes",
    "dp2 ep2 images allgather lanes rows:many",
    "dp2 cp2 tp2 ep4 images parameters lanes rows:large",
    "= dp2 cp2 tp2 ep4 images recompute:* offload:vision.* rows:large",
    "pp2 dp2 images lanes",
    "= pp2 dp2 images recompute:* parameters lanes",
    "pp2 dp2 images zb parameters each lanes rows:eight",
    "pp2 dp2 images chunks2 lanes rows:eight",
    "pp2 dp2 images -vision -projector lanes rows:large",
    "+ pp2 dp2 images stages:V,4H zb lanes rows:large",
    "pp3 dp2 images stages:V2,V3,4H lanes",
    "pp2 cp2 images stages:V,4H ring lanes rows:0-3",
    "pp2 dp2 images lanes rows:0-0",
    "pp2 dp2 images lanes rows:late",
    "+ pp2 dp2 cp2 tp2 ep4 images parameters lanes rows:many",
    "pp2 dp2 cp2 tp2 copies2 ep4 chunks2 images parameters lanes rows:large",
    "dp2 images parameters stamps lanes",
    "+ dp2 cp2 images:1.25 stamps lanes",
    "= dp2 cp2 images:1.25 optimizer recompute:* stamps",
    "pp2 dp2 cp2 tp2 ep4 images parameters stamps lanes",
    "dp2 cp2 ep2 images shared overlap delay lanes rows:many",
    "dp2 ep2 shared room:0.25 overlap lanes",
    /* uneven supervision */
    "+ dp2 parameters lanes rows:mute",
    "dp2 ep2 tp2 lanes rows:mute",
    "+ dp2 parameters each lanes rows:idle",
    "dp2 cp2 ring lanes rows:idle",
    "pp2 dp2 lanes rows:idle",
    "+ dp2 parameters lanes rows:silent",
    "+ dp2 tp2 ep4 lanes rows:silent",
    "cp2 tp2 lanes rows:silent",
    "+ pp2 zb lanes rows:silent",
};

/* Models: layout_config(), and others by name. */
enum { PLAIN, GOLDEN, TIED, SHARED, STAMPS, MODELS };
static const char *const model_name[MODELS] = {"plain", "golden", "tied", "shared",
                                               "stamps"};

struct entry {
    const char *line;
    const struct entry *base;           /* of which it must have the bits, or NULL */
    bool everyday;
    int rows, model;
    struct trial trial;
};

/* What goes from case to case. */
static struct {
    struct arena arena;                 /* for all of them */
    struct model_config config[MODELS];
    struct layout_rows rows[COUNT(sets)];
    struct known {
        int rows, model;
        unsigned frozen;
        bool bias, masters;
        enum dtype compute;
        struct outcome out;
    } known[160];
    int nknown;
    struct arena base_arena;
    const struct entry *base;           /* base_is is its outcome */
    struct outcome base_is;
    int passed;
    double worst;
} shared;

/* ---- reading a line ---- */

static inline int named(const char *word, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(word, names[i]) == 0)
            return i;
    return -1;
}

/* "pp2" and its like. */
static inline bool number_word(const char *word, struct entry *e, int *dp)
{
    struct layout *l = &e->trial.layout;
    const struct { const char *name; int *to; } number[] = {
        {"pp", &l->pp}, {"dp", dp}, {"cp", &l->cp}, {"tp", &l->tp}, {"ep", &l->ep},
        {"etp", &l->etp}, {"copies", &l->replicate}, {"chunks", &e->trial.chunks},
        {"prefetch", &e->trial.sharding.prefetch},
    };
    size_t n = strcspn(word, "0123456789");
    for (int i = 0; i < COUNT(number) && word[n]; i++)
        if (strlen(number[i].name) == n && strncmp(word, number[i].name, n) == 0) {
            *number[i].to = (int)strtol(word + n, NULL, 10);
            return true;
        }
    return false;
}

static inline bool flag_word(const char *word, struct entry *e)
{
    static const char *const level[] = {"optimizer", "gradients", "parameters"};
    struct trial *t = &e->trial;
    const struct { const char *name; bool *to; } flag[] = {
        {"+", &e->everyday}, {"each", &t->sharding.each}, {"keep", &t->keep_weights},
        {"weave", &t->weave}, {"overlap", &t->overlap}, {"delay", &t->delay},
        {"lanes", &t->lanes}, {"zb", &t->zero_bubble}, {"ring", &t->options.cp_ring},
        {"bias", &t->options.bias}, {"images", &t->vision.balance},
    };
    for (int i = 0; i < COUNT(flag); i++)
        if (strcmp(word, flag[i].name) == 0)
            return *flag[i].to = true;
    bool lean = strcmp(word, "lean") == 0;
    if (lean || strcmp(word, "bf16") == 0) {
        enum dtype kept = lean ? DTYPE_BF16 : DTYPE_F32;
        t->compute = DTYPE_BF16;
        t->precision = (struct precision){kept, kept, !lean};
        return true;
    }
    int l = named(word, level, COUNT(level));
    if (l >= 0) {
        t->sharding.state = true;
        t->sharding.weights = l == 2;
        return true;
    }
    if (strcmp(word, "slack") == 0)
        return (t->slack = 1.3) > 0;
    if (strcmp(word, "allgather") == 0) {
        t->options.dispatcher = DISPATCHER_ALLGATHER;
        return true;
    }
    int part = word[0] == '-' ? named(word + 1, part_name, PARTS) : -1;
    int model = named(word, model_name, MODELS);
    t->frozen |= part >= 0 ? 1u << part : 0;
    e->model = model >= 0 ? model : e->model;
    return part >= 0 || model >= 0;
}

static inline bool list_word(const char *word, struct entry *e)
{
    const struct { const char *name; const char **to; } list[] = {
        {"recompute:", &e->trial.recompute}, {"offload:", &e->trial.offload},
        {"stages:", &e->trial.stages},
    };
    for (int i = 0; i < COUNT(list); i++)
        if (text_starts(word, list[i].name)) {
            *list[i].to = word + strlen(list[i].name);
            return true;
        }
    if (text_starts(word, "images:")) {
        e->trial.vision.balance = true;
        return (e->trial.vision.capacity = strtod(word + 7, NULL)) > 0;
    }
    if (text_starts(word, "room:"))
        return (e->trial.options.capacity = strtod(word + 5, NULL)) > 0;
    for (int i = 0; i < COUNT(sets) && text_starts(word, "rows:"); i++)
        if (strcmp(word + 5, sets[i].name) == 0) {
            e->rows = i;
            return true;
        }
    return false;
}

/* `last`: the line before it that others are measured by. */
static inline struct entry entry_read(struct arena *a, const char *line,
                                      const struct entry *last)
{
    struct entry e = {.line = line, .trial.sharding.prefetch = 1};
    char **word;
    int dp = 1, n = text_split(a, line, " ", &word);
    for (int i = 0; i < n; i++) {
        if (strcmp(word[i], "=") == 0)
            e.base = last;
        else if (!number_word(word[i], &e, &dp) && !flag_word(word[i], &e) &&
                 !list_word(word[i], &e))
            BUG("matrix: '%s' of '%s' means nothing", word[i], line);
    }
    struct layout *l = &e.trial.layout;
    l->world = MAX(l->pp, 1) * dp * MAX(l->cp, 1) * MAX(l->tp, 1);
    if (e.model)
        e.trial.config = &shared.config[e.model];
    if (e.model == STAMPS)
        e.rows = COUNT(sets) - 1;
    return e;
}

/* ---- running one ---- */

static inline void shared_make(void)
{
    shared.arena = arena_make("matrix");
    shared.base_arena = arena_make("matrix base");
    shared.config[GOLDEN] = case_config();
    shared.config[TIED] = layout_config();
    shared.config[TIED].decoder.tied = true;
    shared.config[STAMPS] = stamps_config();
    shared.config[SHARED] = layout_config();
    shared.config[SHARED].decoder.shared_hidden = 20;
    int last = COUNT(sets) - 1;
    for (int i = 0; i < last; i++)
        shared.rows[i] = layout_rows(&shared.arena, sets[i].count, sets[i].images);
    shared.rows[last] = stamps_rows(&shared.arena, sets[last].count);
}

static inline void shared_free(void)
{
    print_message("%d lines, worst %.1e\n", shared.passed, shared.worst);
    arena_free(&shared.arena);
    arena_free(&shared.base_arena);
}

/* One rank's numbers. */
static inline const struct outcome *alone(const struct entry *e)
{
    for (int i = 0; i < shared.nknown; i++) {
        const struct known *k = &shared.known[i];
        if (k->rows == e->rows && k->model == e->model &&
            k->frozen == e->trial.frozen && k->bias == e->trial.options.bias &&
            k->compute == e->trial.compute && k->masters == e->trial.precision.masters)
            return &k->out;
    }
    REQUIRE(shared.nknown < COUNT(shared.known));
    struct known *k = &shared.known[shared.nknown];
    *k = (struct known){e->rows, e->model, e->trial.frozen, e->trial.options.bias,
                        e->trial.precision.masters, e->trial.compute, {0}};
    k->out = layout_run(&shared.arena, &shared.rows[e->rows], &(struct trial){
        .frozen = k->frozen, .config = e->trial.config, .options.bias = k->bias,
        .compute = k->compute, .precision = e->trial.precision});
    shared.nknown++;
    return &k->out;
}

struct worst { double error; const char *what, *name; };

static inline void worst_meets(struct worst *w, double error, const char *what,
                               const char *name)
{
    if (!(error <= w->error))
        *w = (struct worst){error, what, name};
}

static inline double relative(double is, double want)
{
    return is == want ? 0 : fabs(is - want) / fabs(want);
}

/* The largest relative distance of anything. */
static inline struct worst worst_of(const struct outcome *is,
                                    const struct outcome *want, unsigned frozen)
{
    struct worst w = {0, "nothing", ""};
    for (int k = 0; k < LAYOUT_UPDATES; k++) {
        worst_meets(&w, relative(is->loss[k], want->loss[k]), "loss", "");
        worst_meets(&w, relative(is->grad_norm[k], want->grad_norm[k]), "norm", "");
    }
    for (int64_t i = 0; i < want->graph->nparam; i++) {
        const struct param *p = &want->graph->param[i];
        double grad = layout_gap(is->grad[i], want->grad[i], p->count), size = 0;
        worst_meets(&w, layout_gap(is->weight[i], want->weight[i], p->count), "weight",
                    p->name);
        if (frozen >> p->part & 1)
            continue;
        for (int64_t k = 0; k < p->count; k++)
            size += (double)want->grad[i][k] * (double)want->grad[i][k];
        /* A gradient that is zero but for rounding has no digits to compare. */
        if (size == 0 || !(grad * sqrt(size) <= 1e-7 * want->grad_norm[0]))
            worst_meets(&w, grad, "gradient", p->name);
    }
    return w;
}

/* Where two sums in bf16 may differ a token may choose another expert, and single
 * tensors say little: of all together, in parts of what is allowed. */
static inline struct worst worst_of_all(const struct outcome *is,
                                        const struct outcome *want, unsigned frozen,
                                        bool masters)
{
    struct worst w = {0, "nothing", ""};
    double grad[2] = {0}, weight[2] = {0};      /* distance and size, squared */
    for (int k = 0; k < LAYOUT_UPDATES; k++) {
        worst_meets(&w, relative(is->loss[k], want->loss[k]) / 2e-3, "loss", "");
        worst_meets(&w, relative(is->grad_norm[k], want->grad_norm[k]) / 2e-2, "norm",
                    "");
    }
    for (int64_t i = 0; i < want->graph->nparam; i++)
        for (int64_t k = 0; k < want->graph->param[i].count; k++) {
            double g = frozen >> want->graph->param[i].part & 1 ? 0 : want->grad[i][k];
            double d = g == 0 ? 0 : is->grad[i][k] - g;
            double x = want->weight[i][k], y = is->weight[i][k] - x;
            grad[0] += d * d, grad[1] += g * g;
            weight[0] += y * y, weight[1] += x * x;
        }
    if (grad[1] > 0)
        worst_meets(&w, sqrt(grad[0] / grad[1]) / 0.15, "gradient", "of all params");
    worst_meets(&w, sqrt(weight[0] / weight[1]) / (masters ? 2e-3 : 5e-3), "weight",
                "of all params");
    return w;
}

static inline bool without_images(const struct row_set *s)
{
    bool any = s == &sets[COUNT(sets) - 1];     /* stamps */
    for (int i = 0; i < s->count; i++)
        any |= s->images[i] > 0 || s->images[i] < -1;
    return !any;
}

/* Nothing to see, nothing to learn: zero, not nearly. */
static inline void check_unseen(const struct outcome *is, unsigned frozen)
{
    for (int64_t i = 0; i < is->graph->nparam; i++) {
        const struct param *p = &is->graph->param[i];
        bool tower = p->part == PART_VISION || p->part == PART_PROJECTOR;
        for (int64_t k = 0; k < p->count && tower && !(frozen >> p->part & 1); k++)
            if (is->grad[i][k] != 0)
                fail_msg("%s has a gradient without images", p->name);
    }
}

static inline const struct outcome *base_outcome(const struct entry *e)
{
    if (shared.base != e) {
        shared.base = NULL;
        arena_free(&shared.base_arena);
        shared.base_is =
            layout_run(&shared.base_arena, &shared.rows[e->rows], &e->trial);
        shared.base = e;
    }
    return &shared.base_is;
}

static inline void matrix_case(void **state)
{
    const struct entry *e = *state;
    struct arena a = arena_make("case");
    const struct outcome *want = alone(e);
    struct outcome is = e->base ? layout_run(&a, &shared.rows[e->rows], &e->trial)
                                : *base_outcome(e);
    bool narrow = e->trial.compute == DTYPE_BF16;
    struct worst w =
        narrow ? worst_of_all(&is, want, e->trial.frozen, e->trial.precision.masters)
               : worst_of(&is, want, e->trial.frozen);
    print_message("  %.1e %s %s\n", w.error, w.what, w.name);
    if (!(w.error <= (narrow ? 1 : 1e-5)))
        fail_msg("%s: %s %s is off by %g", e->line, w.what, w.name, w.error);
    bool crowded = strcmp(sets[e->rows].name, "full") == 0 && e->trial.layout.cp < 2;
    if ((is.crowded > 0) != (e->trial.vision.balance && crowded))
        fail_msg("%s: %d microbatches kept their images at home", e->line, is.crowded);
    if (without_images(&sets[e->rows]))
        check_unseen(&is, e->trial.frozen);
    double images = e->trial.vision.capacity;
    if ((e->trial.options.capacity > 0 || (images > 0 && images < 0.3)) && !is.grown)
        fail_msg("%s: there was room enough, nothing grew", e->line);
    if (e->base)
        layout_identical(&is, base_outcome(e->base), e->trial.frozen, e->line);
    shared.passed++;
    shared.worst = MAX(shared.worst, narrow ? 0 : w.error);
    arena_free(&a);
}

/* A test for each line, of those that run every day only where asked. */
static inline int matrix_tests(bool everyday, struct CMUnitTest test[COUNT(matrix)])
{
    struct entry *e = NEW(&shared.arena, struct entry, COUNT(matrix));
    const struct entry *last = NULL;
    int n = 0;
    for (int i = 0; i < COUNT(matrix); i++) {
        e[i] = entry_read(&shared.arena, matrix[i], last);
        last = e[i].base ? last : &e[i];
        if (!everyday || e[i].everyday)
            test[n++] = (struct CMUnitTest){
                .name = matrix[i], .test_func = matrix_case, .initial_state = &e[i]};
    }
    return n;
}

#endif
