/* balance.c - pixels to the rank that encodes them, features to the ranks of their
 * tokens.
 *
 * Stands alone because the tower itself cannot tell whose images it encodes.  Ranks of
 * dp x cp share the images of all their rows; which one encodes which is decided
 * outside and comes as lists.  tp ranks encode together: each has a part of the
 * patches. */
#include "vision/parts.h"

#include <math.h>

static const struct segment pixel_sort = {
    .name = "pixel_sort", COMPUTE("vision"), PICK,
};

static const struct segment pixel_send = {
    .name = "pixel_send", .component = "vision", EXCHANGE,
};

static const struct segment feature_sort = {
    .name = "feature_sort", COMPUTE("projector"), PICK,
};

static const struct segment feature_send = {
    .name = "feature_send", .component = "projector", EXCHANGE,
};

/* Data-parallel rows, and the ranks that encode their images. */
static int rows_of(const struct graph *g)
{
    return graph_ways(g, false, AXIS_REPLICATE) * graph_ways(g, false, AXIS_SHARD);
}

static int encoders_of(const struct graph *g)
{
    return rows_of(g) * graph_ways(g, false, AXIS_CP);
}

int64_t vision_room(const struct graph *g, const struct vision_config *c,
                    const struct capacity *cap, const struct vision_options *o)
{
    int64_t least = (int64_t)c->merge * c->merge * graph_ways(g, false, AXIS_TP);
    double wanted = o->capacity * (double)cap->patches / graph_ways(g, false, AXIS_CP);
    REQUIRE(cap->patches > 0 && cap->patches % least == 0);
    if (!vision_balances(g, o) || o->capacity == 0 || wanted >= (double)cap->patches)
        return cap->patches;
    return MAX((int64_t)ceil(wanted / (double)least), 1) * least;
}

bool vision_balances(const struct graph *g, const struct vision_options *o)
{
    return o->balance && encoders_of(g) > 1;
}

static int list(struct graph *g, const char *name, int64_t n)
{
    return graph_input(g, name, DTYPE_I32, 1, (int64_t[]){n});
}

/* Every cp rank of a row has its pixels: so images go to the rank of the same cp and tp
 * number, and stay on the rank where there is one row alone. */
int vision_pixels(struct graph *g, int pixels, int64_t room)
{
    int ways = rows_of(g), tp = graph_ways(g, false, AXIS_TP);
    int64_t P = g->value[pixels].dim[0];
    int row = list(g, "pixel_row", ways > 1 ? P : room / tp);
    int x = pick_record(g, &pixel_sort, "pixels_sorted", pixels, row, NONE);
    if (ways > 1) {
        int leave = list(g, "pixel_leave", ways + 1);
        int arrive = list(g, "pixel_arrive", ways + 1);
        x = exchange_record(g, &pixel_send, "pixels_own", x, leave, arrive, room / tp,
                            P / (encoders_of(g) * tp));
        graph_group(g, false, ON_DP);
    }
    graph_keep(g, x);                   /* what the patch embedding's weights read */
    return x;
}

struct feature_lists vision_feature_lists(struct graph *g, int64_t features,
                                          int64_t room, int64_t tokens)
{
    int tp = graph_ways(g, false, AXIS_TP), members = encoders_of(g) * tp;
    struct places own = places_of_rank(g, tokens);
    int64_t share = tp * graph_ways(g, false, AXIS_CP);
    return (struct feature_lists){
        .order = list(g, "feature_order", room / tp),
        .undo = list(g, "feature_undo", room / tp),
        .leave = list(g, "feature_leave", members + 1),
        .arrive = list(g, "feature_arrive", members + 1),
        .rows = MIN(features, places_count(&own)),
        .even = MIN(features, tokens) / share / members,
    };
}

int vision_features(struct graph *g, const struct feature_lists *l, int x)
{
    x = pick_record(g, &feature_sort, "feature_sorted", x, l->order, l->undo);
    x = exchange_record(g, &feature_send, "feature_placed", x, l->leave, l->arrive,
                        l->rows, l->even);
    graph_group(g, false, ON_DP | ON(AXIS_CP) | ON(AXIS_TP));
    return x;
}
