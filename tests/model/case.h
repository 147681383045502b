/* case.h - one packed row of two samples and three images, and weights by formula, for
 * any small model: the golden case of the Qwen3-VL-MoE family (79 + 29 tokens).
 *
 * Values of weights: u(k + salt, i), k = place of the param's name in bytewise order, i
 * = place on disk, so that other programs can make the same ones. */
#ifndef TESTS_CASE_H
#define TESTS_CASE_H

#include "decoder/decoder.h"
#include "tests/model/mini.h"

enum { CASE_IMAGE = 5, CASE_LIVE = 79 + 29, CASE_PATCHES = 144, CASE_SUPERVISED = 65 };

/* qwen3-vl-moe's golden model: 5 blocks, 2 taps, 4 layers of which one is dense. */
static inline struct model_config case_config(void)
{
    return (struct model_config){
        .has_vision = true,
        .vision = {.depth = 5,
                   .width = 32,
                   .heads = 4,
                   .hidden = 48,
                   .patch = 4,
                   .frames = 2,
                   .merge = 2,
                   .channels = 3,
                   .positions = 36,
                   .out = 24,
                   .taps = 2,
                   .tap = {1, 3},
                   .theta = 10000,
                   .eps = 1e-6},
        .decoder = {.layers = 4,
                    .width = 24,
                    .heads = 4,
                    .groups = 2,
                    .head_width = 16,
                    .hidden = 20,
                    .experts = 6,
                    .active = 2,
                    .expert_hidden = 10,
                    .moe = {true, false, true, true},
                    .vocabulary = 64,
                    .theta = 10000,
                    .eps = 1e-6,
                    .section = {4, 2, 2},
                    .initial = 0.02,
                    .aux_coef = 0.001},
        .image_token = CASE_IMAGE,
        .video_token = 6,
        .vision_start = 7,
        .vision_end = 8,
        .bos = -1,
        .pad = -1,
    };
}

/* More room than the case needs: padding is part of it. */
static inline struct capacity case_capacity(void)
{
    return (struct capacity){.tokens = 120, .patches = 152, .segments = 4, .images = 5};
}

static inline bool case_ends(const char *text, const char *with)
{
    size_t n = strlen(text), k = strlen(with);
    return n >= k && strcmp(text + n - k, with) == 0;
}

/* The place of a param's name in bytewise order. */
static inline uint64_t case_place(const struct graph *g, const char *name)
{
    uint64_t before = 0;
    for (int64_t p = 0; p < g->nparam; p++)
        before += strcmp(g->param[p].name, name) < 0;
    return before;
}

/* The place on disk of a param's element i. */
static inline int64_t case_disk(const struct param *p, int64_t i)
{
    int64_t whole = box_global(&p->box, i), N = p->dim[2], D = p->dim[1];
    if (!p->transposed)
        return whole;                   /* memory [e][n][d], disk [e][d][n] */
    return whole / (N * D) * N * D + whole % D * N + whole / D % N;
}

static inline void case_weights(struct mini *m, uint64_t salt)
{
    const struct graph *g = m->g;
    for (int64_t p = 0; p < g->nparam; p++) {
        const struct param *q = &g->param[p];
        uint64_t k = salt + case_place(g, q->name);
        bool norm = case_ends(q->name, "norm.weight") ||
                    case_ends(q->name, "norm1.weight") ||
                    case_ends(q->name, "norm2.weight");
        double base = norm ? 1 : 0;
        double range = norm ? 0.2 : case_ends(q->name, ".bias") ? 0.1 : 0.3;
        float *to = m->param[p].data;
        for (int64_t i = 0; i < q->count; i++)
            to[i] = (float)(base + range * mini_u(k, (uint64_t)case_disk(q, i)));
    }
}

/* One image: its patches in merge order, and the tokens that stand for it. */
static inline void case_image(struct mini *m, int height, int width, int32_t *patch,
                              int32_t *at, int32_t *token)
{
    int32_t *place = mini_input(m, "patch"), *feature = mini_input(m, "feature");
    int32_t *feature_token = mini_input(m, "feature_token");
    for (int block = 0; block < height * width / 4; block++)
        for (int i = 0; i < 4; i++) {
            int row = block / (width / 2) * 2 + i / 2,
                col = block % (width / 2) * 2 + i % 2;
            int32_t *p = place + 4 * (*patch)++;
            p[0] = row, p[1] = col, p[2] = height, p[3] = width;
        }
    for (int f = 0; f < height * width / 4; f++) {
        feature[*token] = *at;
        feature_token[(*at)++] = (*token)++;
    }
}

/* Positions of one sample: text counts up, an image spans its rows and columns. */
static inline void case_positions(int32_t *position, const int32_t *id, int count,
                                  const int (*grid)[2])
{
    int now = 0;
    for (int t = 0; t < count;) {
        if (id[t] != CASE_IMAGE) {
            for (int i = 0; i < 3; i++)
                position[3 * t + i] = now;
            now++;
            t++;
            continue;
        }
        int h = (*grid)[0] / 2, w = (*grid)[1] / 2;
        for (int f = 0; f < h * w; f++, t++) {
            position[3 * t] = now;
            position[3 * t + 1] = now + f / w;
            position[3 * t + 2] = now + f % w;
        }
        now += MAX(h, w);
        grid++;
    }
}

static inline int case_ids(int32_t *id)
{
    static const int32_t open[] = {9, 10, 11, 7}, middle[] = {12, 13, 14, 15, 7};
    int n = 0;
    for (int i = 0; i < 4; i++)
        id[n++] = open[i];
    for (int i = 0; i < 24; i++)
        id[n++] = CASE_IMAGE;
    for (int i = 0; i < 5; i++)
        id[n++] = middle[i];
    for (int i = 0; i < 6; i++)
        id[n++] = CASE_IMAGE;
    for (int i = 20; i < 60; i++)
        id[n++] = i;
    REQUIRE(n == 79);
    id[n++] = 8, id[n++] = 30, id[n++] = 7;
    for (int i = 0; i < 6; i++)
        id[n++] = CASE_IMAGE;
    for (int i = 31; i < 51; i++)
        id[n++] = i;
    REQUIRE(n == CASE_LIVE);
    return n;
}

/* Fill every input that the graph has.  Padding holds harmless numbers. */
static inline void case_inputs(struct mini *m)
{
    static const int grid[3][2] = {{8, 12}, {6, 4}, {4, 6}};
    static const int start[] = {0, 79, CASE_LIVE};
    int32_t id[CASE_LIVE];
    case_ids(id);
    int64_t T = m->value[graph_find(m->g, "input")].dim[0];
    int32_t *input = mini_input(m, "input"), *position = mini_input(m, "position");
    int32_t *target = mini_input(m, "target"), *feature = mini_input(m, "feature");
    memset(position, 0, sizeof *position * 3 * (size_t)T);
    for (int t = 0; t < T; t++)
        input[t] = t >= CASE_LIVE ? 0 : feature && id[t] == CASE_IMAGE ? -1 : id[t];
    case_positions(position, id, 79, grid);
    case_positions(position + 3 * 79, id + 79, 29, grid + 2);
    int64_t nsegment = m->value[graph_find(m->g, "segment")].dim[0];
    for (int i = 0; i < nsegment; i++)
        ((int32_t *)mini_input(m, "segment"))[i] = start[MIN(i, 2)];
    for (int s = 0, t = 0; target && t < T; t++) {
        if (s < 1 && t == start[s + 1])
            s++;
        int next = t + 1 - start[s];            /* place of the target in its sample */
        bool scored = t + 1 < start[s + 1] && next > 5 && id[t + 1] != CASE_IMAGE;
        target[t] = scored ? id[t + 1] : IGNORE;
    }
    if (target)
        *(float *)mini_input(m, "scale") = 1.0f / CASE_SUPERVISED;
    if (mini_input(m, "live"))
        *(int32_t *)mini_input(m, "live") = CASE_LIVE;
    if (mini_input(m, "share"))
        *(float *)mini_input(m, "share") = 1;
    if (!feature)
        return;
    int64_t P = m->value[graph_find(m->g, "patch")].dim[0];
    int64_t values = m->value[graph_find(m->g, "pixels")].dim[1];
    int32_t *patch = mini_input(m, "patch"), *bound = mini_input(m, "image");
    float *pixels = mini_input(m, "pixels");
    for (int64_t p = 0; p < P; p++)
        memcpy(patch + 4 * p, (int32_t[]){0, 0, 1, 1}, 4 * sizeof *patch);
    for (int64_t i = 0; i < P * values; i++)
        pixels[i] = i < CASE_PATCHES * values ? (float)mini_u(9999, (uint64_t)i) : 0;
    for (int64_t t = 0; t < T; t++)
        feature[t] = -1;
    for (int64_t f = 0; f < P / 4; f++)
        ((int32_t *)mini_input(m, "feature_token"))[f] = -1;
    int32_t at = 0, row = 0;
    int64_t nbound = m->value[graph_find(m->g, "image")].dim[0];
    for (int i = 0; i < 3; i++) {
        static const int32_t token[] = {4, 33, 82};
        int32_t t = token[i];
        bound[i] = row;
        case_image(m, grid[i][0], grid[i][1], &row, &at, &t);
    }
    for (int64_t i = 3; i < nbound; i++)
        bound[i] = row;
    REQUIRE(row == CASE_PATCHES);
}

/* Record the whole model of `c` for the case. */
static inline struct graph case_graph(struct arena *a, const struct model_config *c,
                                      const struct decoder_options *o,
                                      struct decoder_graph *out)
{
    struct graph g = graph_make(a);
    struct capacity cap = case_capacity();
    struct vision_graph vision;
    if (c->has_vision)
        vision_record(&g, &c->vision, &cap, &(struct vision_options){0}, &vision);
    decoder_record(&g, &c->decoder, &cap, c->has_vision ? &vision : NULL, o, out);
    graph_check(&g);
    return g;
}

#endif
