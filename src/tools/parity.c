/* parity.c - runs one forward and backward on a case file's inputs. */
#include "tools/parity.h"

#include "checkpoint/hf.h"
#include "train/crew.h"
#include "train/session.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

struct inputs {                         /* the case file's tensors */
    const int64_t *id, *label, *mask, *grid;
    int64_t rows, width, images;
    const float *pixels;
    int64_t patches, values;
};

static bool tensor_get(const struct safetensors *f, const char *name, enum dtype dtype,
                       int ndim, const struct disk_tensor **out)
{
    *out = safetensors_find(f, name);
    if (!*out || (*out)->dtype != dtype || (*out)->ndim != ndim)
        return fail("parity: %s: tensor '%s' must be %s with %d dimension(s)", f->path,
                    name, dtype_safetensors(dtype), ndim);
    return true;
}

static const void *aligned(struct arena *a, const struct disk_tensor *t)
{
    return arena_copy(a, t->data, (size_t)t->bytes);
}

static bool inputs_read(struct arena *a, const struct safetensors *f, struct inputs *in)
{
    const struct disk_tensor *id, *label, *mask, *pixels, *grid;
    if (!tensor_get(f, "input_ids", DTYPE_I64, 2, &id) ||
        !tensor_get(f, "labels", DTYPE_I64, 2, &label) ||
        !tensor_get(f, "attention_mask", DTYPE_I64, 2, &mask) ||
        !tensor_get(f, "pixel_values", DTYPE_F32, 2, &pixels) ||
        !tensor_get(f, "image_grid_thw", DTYPE_I64, 2, &grid))
        return false;
    if (id->count != label->count || id->count != mask->count || grid->dim[1] != 3)
        return fail(
            "parity: %s: input_ids, labels and attention_mask must have one shape, "
            "image_grid_thw 3 columns",
            f->path);
    *in = (struct inputs){
        .id = aligned(a, id), .label = aligned(a, label), .mask = aligned(a, mask),
        .grid = aligned(a, grid), .rows = id->dim[0], .width = id->dim[1],
        .images = grid->dim[0], .pixels = aligned(a, pixels), .patches = pixels->dim[0],
        .values = pixels->dim[1]};
    return true;
}

/* Images of one row, in order: those whose tokens its ids hold. */
static bool images_take(struct arena *a, const struct inputs *in,
                        const struct model_config *c, int64_t *image, int64_t *patch,
                        int64_t tokens, struct encoded *e)
{
    int cell = c->vision.merge * c->vision.merge;
    e->image = NEW(a, struct patches, in->images + 1);
    while (tokens > 0) {
        if (*image == in->images)
            return fail("parity: more image tokens than image_grid_thw accounts for");
        const int64_t *g = in->grid + 3 * (*image)++;
        int64_t count = g[1] * g[2];
        if (g[0] != 1 || g[1] <= 0 || g[2] <= 0 || *patch + count > in->patches ||
            count / cell > tokens)
            return fail("parity: image %" PRId64 " of grid %" PRId64 "x%" PRId64
                        "x%" PRId64 " does not fit its tokens or pixel_values",
                        *image - 1, g[0], g[1], g[2]);
        e->image[e->nimage++] = (struct patches){
            .grid_h = (int)g[1], .grid_w = (int)g[2], .values = (int)in->values,
            .pixels = (float *)in->pixels + *patch * in->values};
        *patch += count;
        e->patches += (int)count;
        tokens -= count / cell;
    }
    return true;
}

static bool encode(struct arena *a, const struct inputs *in,
                   const struct model_config *c, struct encoded *e)
{
    int64_t image = 0, patch = 0;
    int values = vision_patch_values(&c->vision);
    if (in->values != values)
        return fail("parity: pixel_values has %" PRId64 " columns, patches of the "
                    "model have %d values", in->values, values);
    for (int64_t r = 0; r < in->rows; r++) {
        int64_t tokens = 0;
        e[r] = (struct encoded){.name = "case",
                                .id = r,
                                .input = NEW(a, int32_t, in->width),
                                .scored = NEW(a, bool, in->width)};
        for (int64_t i = r * in->width; i < (r + 1) * in->width; i++) {
            if (!in->mask[i])
                continue;
            if (in->id[i] < 0 || in->id[i] >= c->decoder.vocabulary ||
                (in->label[i] != -100 && in->label[i] != in->id[i]))
                return fail("parity: id %" PRId64 " with label %" PRId64
                            ": ids must be in "
                            "the vocabulary, labels equal them or be -100",
                            in->id[i], in->label[i]);
            tokens += in->id[i] == c->image_token;
            e[r].input[e[r].tokens] = (int32_t)in->id[i];
            e[r].scored[e[r].tokens++] = in->label[i] != -100;
        }
        if (!images_take(a, in, c, &image, &patch, tokens, &e[r]))
            return false;
    }
    return true;
}

/* Norm and sum of a gradient do not depend on the layout of its elements. */
static struct parity_grad grad_summary(const char *name, struct tensor g)
{
    struct parity_grad out = {.name = name};
    for (int64_t k = 0; k < tensor_count(g); k++) {
        float x;
        dtype_to_f32(g.dtype, (char *)g.data + k * dtype_bytes(g.dtype), &x, 1);
        out.norm += (double)x * x;
        out.sum += x;
    }
    out.norm = sqrt(out.norm);
    return out;
}

/* What is compared is numbers. */
static bool all_finite(const struct session *s, const struct parity *p)
{
    float z = 0;
    for (int64_t i = 0; i < p->tokens * p->vocabulary && isfinite(z); i++)
        z = p->logits[i];
    if (!session_finite(s, "the loss", p->loss) || !session_finite(s, "a logit", z))
        return false;
    for (int64_t i = 0; i < p->ngrad; i++)
        if (!session_finite(s, "the norm of a gradient", p->grad[i].norm))
            return fail_in("gradient of '%s'", p->grad[i].name);
    return true;
}

static bool run(struct arena *a, struct session *s, const struct row *row,
                struct parity *out)
{
    struct feed feed = feed_make(&s->arena, &s->model);
    const struct decoder_graph *d = &s->model.decoder;
    feed_row(&feed, s->machine, &s->model, 0, row, (double)row->ledger.supervised,
             (double)row->live, s->router_bias, NULL);
    if (!machine_step(s->machine))
        return false;
    out->aux_coef = d->moe_layers ? s->model.config.decoder.aux_coef : 0;
    out->loss = *(float *)machine_value(s->machine, d->loss, 0).data;
    out->cross_entropy = *(float *)machine_value(s->machine, d->cross_entropy, 0).data;
    out->aux_loss =
        d->moe_layers ? *(float *)machine_value(s->machine, d->aux, 0).data : 0;
    out->grad = NEW(a, struct parity_grad, s->model.graph.nparam);
    for (int i = 0; i < s->model.graph.nparam; i++) {
        const char *name = s->model.graph.param[i].name;
        out->grad[out->ngrad++] = grad_summary(arena_copy(a, name, strlen(name)),
                                               machine_grad(s->machine, i));
    }
    struct model_purpose logits = purpose_logits();
    struct view_of_model *v = session_view(s, &s->arena, &logits, &s->model.capacity);
    if (!machine_use(s->machine, v->plan))
        return false;
    feed_row(&v->feed, s->machine, &v->model, 0, row, 1, (double)row->live,
             s->router_bias, NULL);
    if (!machine_step(s->machine))
        return false;
    out->tokens = row->live;
    out->vocabulary = s->model.config.decoder.vocabulary;
    out->logits = (float *)arena_copy(
        a, machine_value(s->machine, v->model.decoder.logits, 0).data,
        sizeof(float) * (size_t)(out->tokens * out->vocabulary));
    return all_finite(s, out);
}

/* Nothing to compare: the loss is 0 and so is every gradient. */
static bool scored(const char *path, const struct row *row)
{
    if (row->ledger.supervised)
        return true;
    fail("parity: %s: no token is supervised: every label of the %" PRId64 " token(s) "
         "is -100, or stands at a row's first token, or at an image's", path,
         ledger_useful(&row->ledger));
    return fail_kind(FAULT_DATA);
}

bool parity_run(struct arena *a, const char *model, const char *case_file,
                struct parity *out)
{
    struct arena scratch = arena_make("parity");
    struct safetensors file;
    struct inputs in = {0};
    struct model_config config;
    struct session s = {.arena = arena_make("session")};
    *out = (struct parity){0};
    if (!hf_look(model, false))
        return false;
    if (!safetensors_open(&scratch, case_file, &file))
        return fail_kind(FAULT_DATA);
    bool ok = hf_config_read(&scratch, model, &config) &&
              (inputs_read(&scratch, &file, &in) || fail_kind(FAULT_DATA));
    safetensors_close(&file);
    struct encoded *e = ok ? NEW(&scratch, struct encoded, in.rows + 1) : NULL;
    ok = ok && (encode(&scratch, &in, &config, e) || fail_kind(FAULT_DATA));
    if (ok) {
        struct recipe r;
        struct row row;
        const struct encoded **list = NEW(&scratch, const struct encoded *, in.rows);
        recipe_default(&scratch, &r);
        r.model_path = model;
        r.model_weights = model_weights_load;
        r.batch_tokens = r.batch_patches = 0;
        for (int64_t i = 0; i < in.rows; i++) {
            list[i] = &e[i];
            r.batch_tokens += e[i].tokens;
            r.batch_patches += e[i].patches;
        }
        ok = session_join(&s, &r, true, NULL, NULL) && session_machine(&s);
        if (ok) {
            struct row_shape shape = row_shape_of(&s.model.capacity, &config);
            row_fill(&scratch, &shape, list, (int)in.rows, &row);
            ok = scored(case_file, &row) && run(a, &s, &row, out);
        }
    }
    session_close(&s);
    arena_free(&scratch);
    return ok;
}

char *parity_json(struct arena *a, const struct parity *p)
{
    json_t *grad = json_object();
    for (int64_t i = 0; i < p->ngrad; i++)
        json_object_set_new(grad, p->grad[i].name,
                            json_pack("{s:f, s:f}", "norm", p->grad[i].norm, "sum",
                                      p->grad[i].sum));
    json_t *all = json_pack("{s:f, s:f, s:f, s:f, s:o}", "loss", p->loss,
                            "cross_entropy", p->cross_entropy, "aux_loss", p->aux_loss,
                            "aux_coef", p->aux_coef, "grad", grad);
    char *text = json_dumps(all, JSON_INDENT(1)),
         *copy = arena_copy(a, text, strlen(text));
    free(text);
    json_decref(all);
    return copy;
}
