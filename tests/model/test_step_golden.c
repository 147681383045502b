/* test_step_golden.c - whole training steps against transformers and torch's AdamW, by
 * absolute numbers: images and captions from files, packed in uneven rows, two a step;
 * losses with one denominator, router losses, clipping, warmup and decay of the rate,
 * the router bias; four steps of which one is not finite and changes nothing; the
 * weights after them, and with these the loss of held-out samples.  In f32, and in bf16
 * with f32 masters, within what rounding there does.
 *
 * tests/ref/make_step_golden.py made the numbers from the same files.  Initial weights
 * come from a formula both know, with one row of the embeddings that is not a number:
 * the one caption that uses it makes the step that is skipped. */
#include "check.h"

#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "tests/model/mini.h"
#include "tools/convert.h"
#include "train/train.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <unistd.h>

static const char golden[] = "tests/model/golden/step";

static double number(const json_t *o, const char *key)
{
    const json_t *n = json_object_get(o, key);
    if (!json_is_number(n))
        fail_msg("no number %s", key);
    return json_number_value(n);
}

static void near(const char *what, const char *key, double got, double want,
                 double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s, %s: %.9g, expected %.9g within %.2g", what, key, got, want,
                 tolerance);
}

static void copy(struct arena *a, const char *from, const char *to)
{
    struct bytes file;
    assert_ok(file_read(a, from, 1 << 24, &file));
    assert_ok(file_replace(to, file.at, file.size));
}

static void write_data(struct arena *a, const char *folder, const json_t *data)
{
    size_t i;
    const json_t *d;
    assert_ok(folder_make(folder));
    json_array_foreach(data, i, d) {
        const char *image = json_string_value(json_object_get(d, "image"));
        const char *caption = json_string_value(json_object_get(d, "caption"));
        char *name = arena_text(a, "%s/%02d-%s", folder, (int)i, image);
        copy(a, arena_text(a, "tests/data/image/%s", image), name);
        *strrchr(name, '.') = '\0';
        assert_ok(file_replace(arena_text(a, "%s.txt", name), caption,
                               (int64_t)strlen(caption)));
    }
}

static void write_model(struct arena *a, const char *folder)
{
    static const char *const tokenizer[] = {"tokenizer.json", "tokenizer_config.json",
                                            "chat_template.jinja"};
    assert_ok(folder_make(folder));
    copy(a, path_join(a, golden, "config.json"), path_join(a, folder, "config.json"));
    for (int i = 0; i < COUNT(tokenizer); i++)
        copy(a, path_join(a, "recipes/quickstart", tokenizer[i]),
             path_join(a, folder, tokenizer[i]));
}

static void run(struct arena *a, const char *folder, const json_t *j, const char *name,
                const char *model, const char *export, const char *compute)
{
    const json_t *r = json_object_get(j, "recipe");
    const char *path = path_join(a, folder, "recipe.yaml");
    const char *yaml = arena_text(a,
        "run: {name: %s, folder: %s/runs, seed: %g, log: warn}\n"
        "model: {path: %s}\n"
        "data:\n"
        "  sources: [{path: %s/data, format: folder, prompt: \"%s\"}]\n"
        "  min_pixels: 256\n"
        "  max_pixels: 4096\n"
        "  window: %g\n"
        "  hold_out: %g\n"
        "batch: {tokens: %g, patches: %g, samples: 8, images: 8, rows: %g}\n"
        "moe: {aux_coef: %g, z_coef: %g, bias_rate: %g}\n"
        "optim: {lr: %g, lr_router: %g, warmup: %g, floor: %g, decay: %g, clip: %g,\n"
        "  epsilon: %g, beta1: %g, beta2: %g}\n"
        "train: {steps: %g}\n"
        "eval: {every: 3}\n"
        "device: {threads: 1}\n"
        "report: {tensorboard: false}\n",
        name, folder, number(r, "seed"), model, folder,
        json_string_value(json_object_get(j, "prompt")), number(r, "window"),
        number(r, "hold_out"),
        number(r, "tokens"), number(r, "patches"), number(r, "rows"),
        number(r, "aux_coef"), number(r, "z_coef"), number(r, "bias_rate"),
        number(r, "lr"), number(r, "lr_router"), number(r, "warmup"),
        number(r, "floor"), number(r, "decay"), number(r, "clip"),
        number(r, "epsilon"), number(r, "beta1"), number(r, "beta2"),
        number(r, "steps"));
    assert_ok(file_replace(path, yaml, (int64_t)strlen(yaml)));
    struct recipe recipe;
    const char *const more[] = {export, compute};
    assert_ok(recipe_read(a, path, more, COUNT(more), &recipe));
    assert_ok(train(&recipe, &(struct allowed){0}));
}

static int by_name(const void *a, const void *b)
{
    const struct disk_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* The weights of a folder, in bytewise order of their names. */
static struct safetensors weights(struct arena *a, const char *folder)
{
    struct safetensors s;
    assert_ok(safetensors_open(a, path_join(a, folder, "model.safetensors"), &s));
    qsort(s.tensor, (size_t)s.count, sizeof *s.tensor, by_name);
    return s;
}

/* As case_weights of case.h, on disk. */
static void write_weights(struct arena *a, const char *folder, uint64_t salt,
                          int poison)
{
    struct safetensors s = weights(a, folder);
    int file = open(s.path, O_WRONLY);
    assert_true(file >= 0);
    for (int64_t k = 0; k < s.count; k++) {
        const struct disk_tensor *t = &s.tensor[k];
        const char *end = strrchr(t->name, '.');
        bool bias = !strcmp(end, ".bias"), norm = !bias && end - t->name >= 5 &&
            (!strncmp(end - 4, "norm", 4) || !strncmp(end - 5, "norm1", 5) ||
             !strncmp(end - 5, "norm2", 5));
        double range = norm ? 0.2 : bias ? 0.1 : 0.3;
        float *x = NEW(a, float, t->count);
        assert_int_equal(t->dtype, DTYPE_F32);
        for (int64_t i = 0; i < t->count; i++)
            x[i] = (float)(norm + range * mini_u((uint64_t)k + salt, (uint64_t)i));
        if (strstr(t->name, "embed_tokens"))
            for (int64_t i = 0; i < t->dim[1]; i++)
                x[poison * t->dim[1] + i] = (float)NAN;
        off_t at = (off_t)((const char *)t->data - (const char *)s.map.at);
        assert_int_equal(pwrite(file, x, (size_t)t->bytes, at), t->bytes);
    }
    close(file);
    safetensors_close(&s);
}

/* Norm, sum, and the product with values that no permutation keeps; `scale` times the
 * norm is what rounding may change. */
static void compare_weights(struct arena *a, const char *folder, const json_t *want,
                            uint64_t secret, double tolerance)
{
    struct safetensors s = weights(a, folder);
    assert_int_equal(json_object_size(want), s.count);
    for (int64_t k = 0; k < s.count; k++) {
        const struct disk_tensor *t = &s.tensor[k];
        const json_t *w = json_object_get(want, t->name);
        double square = 0, sum = 0, dot = 0, norm = number(w, "norm");
        for (int64_t i = 0; i < t->count; i++) {
            float x;
            memcpy(&x, (const char *)t->data + 4 * i, sizeof x);
            if (!isfinite(x))
                continue;
            square += (double)x * (double)x;
            sum += (double)x;
            dot += (double)x * mini_u((uint64_t)k + secret, (uint64_t)i);
        }
        near(t->name, "norm", sqrt(square), norm, tolerance * norm);
        near(t->name, "sum", sum, number(w, "sum"), tolerance * norm);
        near(t->name, "dot", dot, number(w, "dot"), tolerance * norm);
    }
    safetensors_close(&s);
}

static void compare_steps(struct arena *a, const char *path, const json_t *want,
                          bool narrow)
{
    static const char *const exact[] = {"supervised_tokens", "useful_tokens"};
    static const struct { const char *key; double tolerance, narrow; } figure[] = {
        {"loss", 2e-6, 5e-3}, {"aux_loss", 2e-6, 1.5e-2}, {"z_loss", 2e-6, 1e-2},
        {"grad_norm", 1e-5, 3e-2}, {"expert_load_max_over_mean", 1e-6, 0.1},
    };
    struct bytes file;
    assert_ok(file_read(a, path, 1 << 20, &file));
    char *line = file.at;
    size_t i;
    const json_t *w;
    int skipped = 0;
    json_array_foreach(want, i, w) {
        const char *what = arena_text(a, "step %d", (int)i + 1);
        json_t *m = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
        if (!m)
            fail_msg("%s: no such line of metrics", what);
        line = strchr(line, '\n') + 1;
        skipped += json_is_true(json_object_get(w, "skipped"));
        near(what, "skipped_steps", number(m, "skipped_steps"), skipped, 0);
        near(what, "lr", number(m, "lr"), number(w, "lr"), 1e-9);
        for (int k = 0; k < COUNT(exact); k++)
            near(what, exact[k], number(m, exact[k]), number(w, exact[k]), 0);
        for (int k = 0; k < COUNT(figure); k++) {
            const char *key = figure[k].key;
            if (json_is_true(json_object_get(w, "skipped")))
                continue;
            double x = number(w, key), size = fmax(fabs(x), 1);
            near(what, key, number(m, key), x,
                 size * (narrow ? figure[k].narrow : figure[k].tolerance));
        }
        if (json_object_get(w, "eval_loss"))
            near(what, "eval_loss", number(m, "eval_loss"), number(w, "eval_loss"),
                 narrow ? 5e-2 : 1e-5);
        json_decref(m);
    }
    assert_int_equal(skipped, 1);
}

static void test_steps_are_transformers_steps(void **state)
{
    (void)state;
    struct arena a = arena_make("golden");
    char *folder = check_folder(&a);
    json_error_t error;
    json_t *j = json_load_file(arena_text(&a, "%s/expected.json", golden), 0, &error);
    if (!j)
        fail_msg("%s", error.text);
    uint64_t secret = (uint64_t)number(j, "secret");
    log_set(LOG_WARN, 0);
    write_data(&a, path_join(&a, folder, "data"), json_object_get(j, "data"));
    write_model(&a, path_join(&a, folder, "model"));
    run(&a, folder, j, "fresh", path_join(&a, folder, "model"), "train.steps=1",
        "precision.compute=f32");
    const char *first = path_join(&a, folder, "runs/fresh/model");
    write_weights(&a, first, (uint64_t)number(j, "salt"), (int)number(j, "poison"));
    compare_weights(&a, first, json_object_get(j, "before"), secret, 1e-7);

    for (int narrow = 0; narrow < 2; narrow++) {
        const char *name = narrow ? "bf16" : "f32";
        const json_t *want = narrow ? json_object_get(j, name) : j;
        run(&a, folder, j, name, first, "checkpoint.export=false",
            arena_text(&a, "precision.compute=%s", name));
        compare_steps(&a, arena_text(&a, "%s/runs/%s/metrics.jsonl", folder, name),
                      json_object_get(want, "steps"), narrow);
        const char *last = path_join(&a, folder, arena_text(&a, "last-%s", name));
        assert_ok(convert(&(struct convert_options){
            .from = arena_text(&a, "%s/runs/%s/checkpoints/step-4", folder, name),
            .to = last, .force = true, .shard_bytes = 1 << 30}));
        compare_weights(&a, last, json_object_get(want, "after"), secret,
                        narrow ? 8e-2 : 2e-5);
    }
    json_decref(j);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_are_transformers_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
