/* balance.c - shares the images of a microbatch out, and writes down the ways. */
#include "train/balance.h"

#include <stdlib.h>

/* ---- who encodes what ---- */

struct load { double cost; int64_t patches, images; };          /* of an encoder */

static int by_cost(const void *a, const void *b)
{
    const struct balance_image *x = *(const struct balance_image *const *)a;
    const struct balance_image *y = *(const struct balance_image *const *)b;
    return x->cost != y->cost ? (x->cost < y->cost ? 1 : -1) : (x > y) - (x < y);
}

/* -1: nowhere. */
static int encoder_for(const struct balance *b, const struct balance_image *x,
                       const struct capacity *room, const struct load *load)
{
    int best = -1;
    for (int e = 0; e < b->rows * b->cp; e++) {
        if (load[e].patches + x->patches > room->patches ||
            load[e].images == room->images)
            continue;
        bool own = e / b->cp == x->row;
        if (best < 0 || load[e].cost < load[best].cost ||
            (load[e].cost == load[best].cost && own && best / b->cp != x->row))
            best = e;
    }
    return best;
}

static void load_add(struct load *load, const struct balance_image *x)
{
    load->cost += x->cost;
    load->patches += x->patches;
    load->images++;
}

static bool spread(struct arena *scratch, const struct capacity *room,
                   struct balance *b, struct load *load)
{
    struct balance_image **order = NEW(scratch, struct balance_image *, b->count + 1);
    for (int i = 0; i < b->count; i++)
        order[i] = &b->image[i];
    qsort(order, (size_t)b->count, sizeof *order, by_cost);
    for (int i = 0; i < b->count; i++) {
        int e = encoder_for(b, order[i], room, load);
        if (e < 0)
            return false;
        order[i]->encoder = e;
        load_add(&load[e], order[i]);
    }
    return true;
}

static void stay_home(struct balance *b, struct load *load)
{
    memset(load, 0, sizeof *load * (size_t)(b->rows * b->cp));
    for (int i = 0; i < b->count; i++) {
        struct balance_image *x = &b->image[i];
        x->encoder = x->row * b->cp;
        load_add(&load[x->encoder], x);
    }
}

static bool fits(const struct balance *b, const struct capacity *room,
                 const struct load *load)
{
    for (int e = 0; e < b->rows * b->cp; e++)
        if (load[e].patches > room->patches)
            return false;
    return true;
}

static double fullest(const struct balance *b, const struct load *load)
{
    double most = 0;
    for (int e = 0; e < b->rows * b->cp; e++)
        most = MAX(most, load[e].cost);
    return most;
}

void balance_assign(struct arena *scratch, const struct capacity *room,
                    struct balance *b)
{
    struct arena_mark mark = arena_mark(scratch);
    int encoders = b->rows * b->cp;
    struct load *load = NEW(scratch, struct load, encoders);
    stay_home(b, load);
    bool home_fits = fits(b, room, load);
    b->unbalanced = fullest(b, load);
    memset(load, 0, sizeof *load * (size_t)encoders);
    b->crowded = !spread(scratch, room, b, load);
    if (b->crowded || (home_fits && fullest(b, load) >= b->unbalanced))
        stay_home(b, load);
    b->most = fullest(b, load);
    b->mean = 0;
    for (int e = 0; e < encoders; e++)
        b->mean += load[e].cost / encoders;
    int64_t *at = NEW(scratch, int64_t, encoders);
    for (int i = 0; i < b->count; i++) {
        b->image[i].at = at[b->image[i].encoder];
        at[b->image[i].encoder] += b->image[i].patches;
    }
    arena_reset(scratch, mark);
}

void balance_add(struct balance_sum *to, const struct balance *b)
{
    to->mean += b->mean;
    to->most += b->most;
    to->unbalanced += b->unbalanced;
    to->crowded += b->crowded;
}

struct balance balance_make(struct arena *a, const struct model *m,
                            const struct row *const *rows)
{
    const struct mesh *mesh = m->graph.mesh;
    struct balance b = {.rows = mesh ? mesh->layout.dp : 1,
                        .cp = mesh ? mesh->layout.cp : 1};
    int64_t room = 0;
    for (int r = 0; r < b.rows; r++)
        for (int64_t i = 0; i < rows[r]->ledger.images; i++) {
            int64_t from = rows[r]->image[i], patches = rows[r]->image[i + 1] - from;
            GROW(a, b.image, b.count, room);
            b.image[b.count++] = (struct balance_image){
                .row = r, .from = from, .patches = patches,
                .cost = image_flops(&m->config, (double)patches, m->frozen),
            };
        }
    struct capacity has = m->capacity;
    has.patches = m->encodes;
    balance_assign(a, &has, &b);
    if (!m->balanced) {
        b.crowded = false;
        b.most = b.unbalanced;
    }
    return b;
}

/* ---- the ways ---- */

/* Where this rank sits: with which row, as which encoder, as which of its tp ranks. */
struct seat {
    int row, cp, encoder, tp, rank;     /* rank: of the stage */
    int ways;                           /* tp ranks of an encoder */
    int64_t cell;                       /* patches of a feature */
};

static struct seat seat_of(const struct model *m)
{
    const struct mesh *mesh = m->graph.mesh;
    int rank = m->graph.rank, merge = m->config.vision.merge;
    struct seat x = {
        .row = view_group_index(&mesh->dense, rank, ON_DP),
        .cp = view_at(&mesh->dense, rank, AXIS_CP),
        .tp = view_at(&mesh->dense, rank, AXIS_TP), .ways = mesh->layout.tp,
        .cell = (int64_t)merge * merge,
    };
    x.encoder = x.row * mesh->layout.cp + x.cp;
    x.rank = x.encoder * x.ways + x.tp;
    return x;
}

static int32_t *list(struct arena *a, int64_t n, int32_t fill)
{
    int32_t *x = NEW(a, int32_t, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = fill;
    return x;
}

/* Counts of members 0, 1, ... in to[1], to[2], ... become bounds. */
static void bounds(int32_t *to, int members)
{
    for (int i = 0; i < members; i++)
        to[i + 1] += to[i];
}

/* What the tower sees: coordinates and bounds of the images encoded here. */
static void feed_tower(struct arena *a, struct machine *machine, const struct model *m,
                       int mb, const struct row *const *rows, const struct balance *b,
                       const struct seat *seat)
{
    int32_t *patch = list(a, 4 * m->encodes, 0);
    int32_t *image = list(a, m->capacity.images + 1, 0);
    int64_t images = 0, end = 0;
    for (int i = 0; i < b->count; i++) {
        const struct balance_image *x = &b->image[i];
        if (x->encoder != seat->encoder)
            continue;
        memcpy(patch + 4 * x->at, rows[x->row]->patch + 4 * x->from,
               4 * sizeof *patch * (size_t)x->patches);
        end = x->at + x->patches;
        image[++images] = (int32_t)end;
    }
    for (int64_t i = images; i < m->capacity.images; i++)
        image[i + 1] = (int32_t)end;
    for (int64_t p = end; p < m->encodes; p++)
        patch[4 * p + 2] = patch[4 * p + 3] = 1;        /* padding, as in a row */
    machine_bind(machine, m->in.patch, mb, patch);
    machine_bind(machine, m->in.image, mb, image);
}

/* Of an image's patches those that its encoder's tp rank `tp` has: [*from, *to). */
static void part_of(const struct balance_image *x, int64_t share, int tp,
                    int64_t *from, int64_t *to)
{
    *from = MAX(x->at, share * tp);
    *to = MAX(MIN(x->at + x->patches, share * (tp + 1)), *from);
}

static void feed_pixels(struct arena *a, struct machine *machine, const struct model *m,
                        int mb, const struct balance *b, const struct seat *seat)
{
    int64_t share = m->encodes / seat->ways, n = 0, from, to;
    int32_t *row = list(a, b->rows > 1 ? m->capacity.patches : share, -1);
    int32_t *leave = list(a, b->rows + 1, 0), *arrive = list(a, b->rows + 1, 0);
    for (int r = 0; r < b->rows; r++) {
        for (int i = 0; i < b->count; i++) {
            const struct balance_image *x = &b->image[i];
            if (x->row != seat->row || x->encoder != r * b->cp + seat->cp)
                continue;
            part_of(x, share, seat->tp, &from, &to);
            for (int64_t p = from; p < to; p++)
                row[n++] = (int32_t)(x->from + p - x->at);
        }
        leave[r + 1] = (int32_t)n;
    }
    for (int i = 0; i < b->count; i++)
        if (b->image[i].encoder == seat->encoder) {
            part_of(&b->image[i], share, seat->tp, &from, &to);
            arrive[b->image[i].row + 1] += (int32_t)(to - from);
        }
    bounds(arrive, b->rows);
    machine_bind(machine, m->in.pixel_row, mb, row);
    if (b->rows > 1) {
        machine_bind(machine, m->in.pixel_leave, mb, leave);
        machine_bind(machine, m->in.pixel_arrive, mb, arrive);
    }
}

/* One feature on its way: by whom it is made, in which row there, and where it goes. */
struct way { int from, to; int64_t row, place; };

static struct way way_of(const struct model *m, const struct row *const *rows,
                         const struct balance *b, const struct balance_image *x,
                         int64_t k, const struct seat *seat)
{
    int64_t share = m->encodes / seat->cell / seat->ways;
    int64_t made = x->at / seat->cell + k;
    int32_t token = rows[x->row]->feature_token[x->from / seat->cell + k];
    struct owner o = places_owner(b->cp, seat->ways, m->capacity.tokens, token);
    return (struct way){
        .from = x->encoder * seat->ways + (int)(made / share), .row = made % share,
        .to = (x->row * b->cp + o.cp) * seat->ways + o.tp, .place = o.local,
    };
}

/* Everything that leaves or arrives here, in the order in which it is made. */
static int64_t ways_find(struct arena *a, const struct model *m,
                         const struct row *const *rows, const struct balance *b,
                         const struct seat *seat, struct way **out)
{
    int64_t n = 0, room = 0;
    *out = NULL;
    for (int i = 0; i < b->count; i++) {
        const struct balance_image *x = &b->image[i];
        if (x->encoder != seat->encoder && x->row != seat->row)
            continue;
        for (int64_t k = 0; k < x->patches / seat->cell; k++) {
            struct way w = way_of(m, rows, b, x, k, seat);
            if (w.from != seat->rank && w.to != seat->rank)
                continue;
            GROW(a, *out, n, room);
            (*out)[n++] = w;
        }
    }
    return n;
}

static void feed_features(struct arena *a, struct machine *machine,
                          const struct model *m, int mb, const struct row *const *rows,
                          const struct balance *b, const struct seat *seat)
{
    int members = b->rows * b->cp * seat->ways;
    int64_t share = m->encodes / seat->cell / seat->ways;
    int64_t places = m->capacity.tokens / b->cp / seat->ways;
    int32_t *order = list(a, share, -1), *undo = list(a, share, -1);
    int32_t *feature = list(a, places, -1);
    int32_t *token = list(a, MIN(places, m->capacity.patches / seat->cell), -1);
    int32_t *leave = list(a, members + 1, 0), *arrive = list(a, members + 1, 0);
    struct way *way;
    int64_t ways = ways_find(a, m, rows, b, seat, &way);
    for (int64_t i = 0; i < ways; i++) {
        leave[way[i].to + 1] += way[i].from == seat->rank;
        arrive[way[i].from + 1] += way[i].to == seat->rank;
    }
    bounds(leave, members);
    bounds(arrive, members);
    int32_t *left = list(a, members, 0), *came = list(a, members, 0);       /* so far */
    for (int64_t i = 0; i < ways; i++) {
        const struct way *w = &way[i];
        if (w->from == seat->rank) {
            int32_t j = leave[w->to] + left[w->to]++;
            order[j] = (int32_t)w->row;
            undo[w->row] = j;
        }
        if (w->to == seat->rank) {
            int32_t j = arrive[w->from] + came[w->from]++;
            feature[w->place] = j;
            token[j] = (int32_t)w->place;
        }
    }
    machine_bind(machine, m->in.feature_order, mb, order);
    machine_bind(machine, m->in.feature_undo, mb, undo);
    machine_bind(machine, m->in.feature_leave, mb, leave);
    machine_bind(machine, m->in.feature_arrive, mb, arrive);
    machine_bind(machine, m->in.feature, mb, feature);
    machine_bind(machine, m->in.feature_token, mb, token);
}

void balance_feed(struct arena *a, struct machine *machine, const struct model *m,
                  int mb, const struct row *const *rows, const struct balance *b)
{
    struct seat seat = seat_of(m);
    REQUIRE(m->balanced && (!b->crowded || m->encodes == m->capacity.patches));
    feed_tower(a, machine, m, mb, rows, b, &seat);
    feed_pixels(a, machine, m, mb, b, &seat);
    feed_features(a, machine, m, mb, rows, b, &seat);
}
