/* page.c - draws curves as SVG and lays a run out as HTML; no script, no outside file.
 */
#include "tools/page.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/hf.h"
#include "train/model.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_MOST = 1 << 30, IMAGE_MOST = 1 << 20, WIDE = 720, HIGH = 260, LEFT = 62,
       RIGHT = 12, TOP = 14, BOTTOM = 34, TICKS = 5 };

struct series {                         /* one figure over steps */
    const char *label, *colour;
    int64_t count;
    double *x, *y;
};

struct run_lines { int64_t count; json_t **line; };

/* ---- reading ---- */

static bool lines_read(struct arena *a, const char *path, struct run_lines *out)
{
    struct bytes text;
    char **line;
    if (!file_read(a, path, TEXT_MOST, &text))
        return false;
    int n = text_split(a, text.at, "\n", &line);
    out->line = NEW(a, json_t *, n + 1);
    for (int i = 0; i < n; i++) {
        json_t *j = json_loads(line[i], 0, NULL);
        if (j)                          /* a torn last line is nothing yet */
            out->line[out->count++] = j;
    }
    return out->count > 0 || fail("report: %s holds no steps", path);
}

static void lines_free(struct run_lines *l)
{
    for (int64_t i = 0; i < l->count; i++)
        json_decref(l->line[i]);
}

/* An exponential mean over about `span` steps, from its own first value on. */
static struct series smoothed(struct arena *a, const struct series *s, double span)
{
    struct series out = *s;
    double keep = 1 - 1 / span, sum = 0, weight = 0;
    out.y = NEW(a, double, s->count);
    for (int64_t i = 0; i < s->count; i++) {
        sum = keep * sum + s->y[i];
        weight = keep * weight + 1;
        out.y[i] = sum / weight;
    }
    return out;
}

static struct series series_of(struct arena *a, const struct run_lines *l,
                               const char *key, const char *label, const char *colour)
{
    struct series s = {label, colour, 0, NEW(a, double, l->count),
                       NEW(a, double, l->count)};
    for (int64_t i = 0; i < l->count; i++) {
        json_t *y = json_object_get(l->line[i], key);
        if (!json_is_number(y))
            continue;
        s.x[s.count] = json_number_value(json_object_get(l->line[i], "step"));
        s.y[s.count++] = json_number_value(y);
    }
    return s;
}

/* ---- drawing ---- */

struct range { double least, most; };

static struct range range_of(const struct series *s, int count, bool of_x)
{
    struct range r = {INFINITY, -INFINITY};
    for (int k = 0; k < count; k++)
        for (int64_t i = 0; i < s[k].count; i++) {
            double v = of_x ? s[k].x[i] : s[k].y[i];
            r.least = MIN(r.least, v);
            r.most = MAX(r.most, v);
        }
    if (!(r.most > r.least))
        r = (struct range){isfinite(r.least) ? r.least - 1 : 0,
                           isfinite(r.least) ? r.least + 1 : 1};
    return r;
}

static double place(double v, struct range r, double from, double to)
{
    return from + (v - r.least) / (r.most - r.least) * (to - from);
}

static void axes(struct text *t, struct range x, struct range y)
{
    for (int i = 0; i <= TICKS; i++) {
        double v = y.least + (y.most - y.least) * i / TICKS;
        double at = place(v, y, HIGH - BOTTOM, TOP);
        text_add(t, "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' stroke='#ddd'/>"
                 "<text x='%d' y='%.1f' text-anchor='end'>%.4g</text>\n", LEFT, at,
                 WIDE - RIGHT, at, LEFT - 6, at + 4, v);
        v = x.least + (x.most - x.least) * i / TICKS;
        text_add(t, "<text x='%.1f' y='%d' text-anchor='middle'>%.0f</text>\n",
                 place(v, x, LEFT, WIDE - RIGHT), HIGH - BOTTOM + 16, v);
    }
    text_add(t, "<text x='%d' y='%d' text-anchor='end'>step</text>\n", WIDE - RIGHT,
             HIGH - 4);
}

static void curves(struct text *t, const char *what, const struct series *s, int count)
{
    struct range x = range_of(s, count, true), y = range_of(s, count, false);
    text_add(t,
             "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' "
             "role='img' font-family='sans-serif' font-size='11'>\n<title>%s</title>\n"
             "<rect width='%d' height='%d' fill='white'/>\n",
             WIDE, HIGH, WIDE, what, WIDE, HIGH);
    axes(t, x, y);
    for (int k = 0; k < count; k++) {
        text_add(t, "<polyline fill='none' stroke='%s' stroke-width='1.5' points='",
                 s[k].colour);
        for (int64_t i = 0; i < s[k].count; i++)
            text_add(t, "%.1f,%.1f ", place(s[k].x[i], x, LEFT, WIDE - RIGHT),
                     place(s[k].y[i], y, HIGH - BOTTOM, TOP));
        text_add(t, "'/>\n<text x='%d' y='%d' fill='%s'>%s</text>\n",
                 LEFT + 10 + 160 * k, HIGH - 4, s[k].colour, s[k].label);
    }
    text_add(t, "</svg>\n");
}

/* ---- the page ---- */

static void escaped(struct text *t, const char *text)
{
    for (const char *c = text; *c; c++)
        if (*c == '<')
            text_add(t, "&lt;");
        else if (*c == '>')
            text_add(t, "&gt;");
        else if (*c == '&')
            text_add(t, "&amp;");
        else if (*c == '\'')
            text_add(t, "&#39;");
        else
            text_add_bytes(t, c, 1);
}

static void base64(struct text *t, struct bytes b)
{
    static const char code[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *at = (const uint8_t *)b.at;
    for (int64_t i = 0; i < b.size; i += 3) {
        uint32_t x = (uint32_t)at[i] << 16 |
                     (i + 1 < b.size ? (uint32_t)at[i + 1] << 8 : 0) |
                     (i + 2 < b.size ? at[i + 2] : 0);
        char four[4] = {code[x >> 18], code[x >> 12 & 63],
                        i + 1 < b.size ? code[x >> 6 & 63] : '=',
                        i + 2 < b.size ? code[x & 63] : '='};
        text_add_bytes(t, four, 4);
    }
}

static double last_of(const struct run_lines *l, const char *key)
{
    return json_number_value(json_object_get(l->line[l->count - 1], key));
}

static double sum_of(const struct run_lines *l, const char *key)
{
    double sum = 0;
    for (int64_t i = 0; i < l->count; i++)
        sum += json_number_value(json_object_get(l->line[i], key));
    return sum;
}

/* Whole numbers in groups of three, others to four digits that count. */
static const char *number(struct arena *a, double value)
{
    if (value != floor(value) && fabs(value) < 1000)
        return arena_text(a, "%.4g", value);
    struct text t = text_make(a);
    char *digits = arena_text(a, "%.0f", value);
    size_t n = strlen(digits);
    for (size_t i = 0; i < n; i++)
        text_add(&t, "%c%s", digits[i], i + 1 < n && (n - i - 1) % 3 == 0 &&
                 digits[i] != '-' ? "," : "");
    return t.at;
}

static void figures(struct text *t, const struct run_lines *l)
{
    double slots = sum_of(l, "slots"), useful = sum_of(l, "useful_tokens");
    double seconds = sum_of(l, "step_ms") / 1e3;
    const struct { const char *name; double value; const char *unit;
    } row[] = {
        {"steps", last_of(l, "step"), ""},
        {"steps whose line in metrics.jsonl is lost",
         last_of(l, "step") - (double)l->count, ""},
        {"epoch, passes over the data begun", last_of(l, "epoch"), ""},
        {"loss of the last step", last_of(l, "loss"), "nats a supervised token"},
        {"useful tokens per second", seconds > 0 ? useful / seconds : 0, ""},
        {"supervised tokens per second",
         seconds > 0 ? sum_of(l, "supervised_tokens") / seconds : 0, ""},
        {"images per second", seconds > 0 ? sum_of(l, "images") / seconds : 0, ""},
        {"slots in use, by something else than padding",
         slots > 0 ? 100 * useful / slots : 0, "%"},
        {"useful tokens: all but padding", useful, ""},
        {"supervised tokens: answers, that the loss is taken over",
         sum_of(l, "supervised_tokens"), ""},
        {"image tokens", sum_of(l, "image_tokens"), ""},
        {"samples", sum_of(l, "samples"), ""},
        {"images", sum_of(l, "images"), ""},
        {"mock samples: made up, not from files", sum_of(l, "mock_samples"), ""},
        {"samples left out, of them:", sum_of(l, "dropped_samples"), ""},
        {"too long", sum_of(l, "too_long_samples"), ""},
        {"without a token to be trained on", sum_of(l, "unscored_samples"), ""},
        {"unreadable", last_of(l, "bad_samples"), ""},
        {"supervised tokens lost with what was too long",
         sum_of(l, "lost_supervised_tokens"), ""},
        {"steps without an update, for gradients that are not finite",
         last_of(l, "skipped_steps"), ""},
        {"peak memory of a rank", last_of(l, "peak_bytes") / 1048576, "MiB"},
        {"time in steps", seconds, "s"},
    };
    text_add(t, "<table>\n");
    for (int i = 0; i < COUNT(row); i++)
        text_add(t, "<tr><td>%s</td><td class='n'>%s %s</td></tr>\n", row[i].name,
                 number(t->arena, row[i].value), row[i].unit);
    text_add(t, "</table>\n");
}

/* What was not the same all the time, from which step on. */
static void changes_add(struct text *t, const struct run_lines *l)
{
    bool any = false;
    for (int64_t i = 0; i < l->count; i++) {
        json_t *list = json_object_get(l->line[i], "changed"), *line;
        size_t k;
        json_array_foreach(list, k, line) {
            text_add(t, "%s<li>step %.0f on: ", any ? "" :
                     "<h2>Settings that changed</h2>\n<p>The run went on with other "
                     "settings than before. Where its data changed, or what is held "
                     "out, held-out samples may have been trained on before.</p>\n<ul>",
                     json_number_value(json_object_get(l->line[i], "step")));
            escaped(t, json_is_string(line) ? json_string_value(line) : "");
            text_add(t, "</li>\n");
            any = true;
        }
    }
    text_add(t, any ? "</ul>\n" : "");
}

static const char *type_of(struct bytes file)
{
    return file.size > 4 && !memcmp(file.at, "\x89PNG", 4) ? "png"
           : file.size > 4 && !memcmp(file.at, "RIFF", 4) ? "webp" : "jpeg";
}

static void sample_add(struct arena *a, struct text *t, const char *run, json_t *sample)
{
    const char *want = json_string_value(json_object_get(sample, "data"));
    const char *got = json_string_value(json_object_get(sample, "model"));
    json_t *images = json_object_get(sample, "images"), *image;
    size_t i;
    text_add(t, "<div class='s'>");
    json_array_foreach(images, i, image) {
        struct bytes file;
        const char *name = json_string_value(image), *path = name;
        json_t *kept = json_array_get(json_object_get(sample, "pictures"), i);
        if (json_is_string(kept))
            path = path_join(a, run, json_string_value(kept));
        if (!path || !file_read(a, path, IMAGE_MOST, &file))
            continue;                   /* moved or large: the text still says it */
        text_add(t, "<img alt='");
        escaped(t, name ? name : path);
        text_add(t, "' src='data:image/%s;base64,", type_of(file));
        base64(t, file);
        text_add(t, "'>");
    }
    text_add(t, "<p class='%s'>", want && got && !strcmp(want, got) ? "same" : "other");
    escaped(t, got ? got : "");
    text_add(t, "</p><p>");
    escaped(t, want ? want : "");
    text_add(t, "</p></div>\n");
}

/* The newest samples/step-N.jsonl, if any. */
static bool samples_add(struct arena *a, struct text *t, const char *run, bool held)
{
    char *folder = path_join(a, run, "samples"), **name, *newest = NULL;
    int64_t count, step = -1, at;
    struct run_lines l = {0};
    if (!folder_exists(folder))
        return true;
    if (!folder_list(a, folder, &name, &count))
        return false;
    for (int64_t i = 0; i < count; i++)
        if (sscanf(name[i], "step-%" SCNd64 ".jsonl", &at) == 1 && at > step) {
            step = at;
            newest = name[i];
        }
    if (!newest || !lines_read(a, path_join(a, folder, newest), &l))
        return true;
    text_add(t,
             "<h2>Answers at step %" PRId64
             "</h2><p>To %s. Above: the model's (green where it "
             "equals the data); below: the data's.</p>\n",
             step, held ? "held-out samples, which the model was not trained on"
                        : "training samples, which the model has seen");
    for (int64_t i = 0; i < l.count; i++)
        sample_add(a, t, run, l.line[i]);
    lines_free(&l);
    return true;
}

static void head(struct text *t, const char *run)
{
    text_add(t, "<!doctype html><html><head><meta charset='utf-8'><title>");
    escaped(t, run);
    text_add(
        t, "</title><style>body{font:15px/1.4 sans-serif;max-width:760px;margin:2em "
           "auto}td{padding:1px 12px 1px 0}.n{text-align:right}.s{display:inline-block;"
           "width:170px;vertical-align:top;margin:6px;font-size:13px}.s "
           "img{max-width:160px;"
           "max-height:120px}.s p{margin:2px 0}.same{color:#070}.other{color:#a40}pre{"
           "background:#f4f4f4;padding:8px;overflow:auto}</style></head><body><h1>");
    escaped(t, run);
    text_add(t, "</h1>\n");
}

/* What was trained, where and when the page was written. */
static void origin(struct text *t, const struct recipe *r)
{
    char host[256] = "", day[32] = "";
    time_t now = time(NULL);
    struct tm local;
    gethostname(host, sizeof host - 1);
    if (localtime_r(&now, &local))
        strftime(day, sizeof day, "%Y-%m-%d %H:%M", &local);
    text_add(t, "<p>Model ");
    escaped(t, r->model_path);
    struct model_config config;
    if (hf_config_read(t->arena, r->model_path, &config)) {
        struct model model;
        struct capacity capacity = capacity_of(r, &config);
        struct model_purpose purpose = purpose_logits();
        model_record(t->arena, &config, &capacity, &purpose, NULL, 0, &model);
        text_add(t, ", %s parameters",
                 number(t->arena, (double)model_parameters(&model, false)));
    }
    text_add(t, ". Written %s on ", day);
    escaped(t, host);
    text_add(t, ".</p>\n");
}

static bool pages_make(struct arena *a, const char *run, const struct run_lines *l)
{
    struct text page = text_make(a), svg = text_make(a);
    struct bytes recipe;
    const struct series each = series_of(a, l, "loss", "loss of a step", "#bcd4e8");
    struct series mean = smoothed(a, &each, MAX((double)l->count / 50, 1));
    mean.label = "training loss, smoothed", mean.colour = "#1f6fb4";
    const struct series loss[] = {
        each, mean, series_of(a, l, "eval_loss", "held-out loss", "#d1495b")};
    struct recipe r;
    const struct series rate = series_of(a, l, "lr", "learning rate", "#7a5195");
    const struct series norm = series_of(a, l, "grad_norm", "gradient norm", "#bc6c25");
    const struct series speed = series_of(a, l, "useful_tokens_per_s_per_gpu",
                                          "useful tokens/s", "#2e8b57");
    if (!file_read(a, path_join(a, run, "recipe.yaml"), TEXT_MOST, &recipe))
        return false;
    recipe_default(a, &r);
    bool known = recipe_parse(&r, "recipe.yaml", recipe.at, recipe.size);
    curves(&svg, "loss over steps", loss, loss[2].count ? 3 : 2);
    head(&page, run);
    if (known)                          /* else of another version: shown as it is */
        origin(&page, &r);
    text_add(&page, "<h2>Loss</h2>\n<p>Cross-entropy of the answers' tokens, in nats: "
             "the lower, the more probable the model finds them.</p>\n%s"
             "<h2>Learning rate</h2>\n", svg.at);
    curves(&page, "learning rate over steps", &rate, 1);
    text_add(&page, "<h2>Gradient norm</h2>\n<p>Of all gradients together, before "
             "clipping; steps without an update have none.</p>\n");
    curves(&page, "gradient norm over steps", &norm, 1);
    text_add(&page, "<h2>Speed</h2>\n"
             "<p>Tokens that are not padding, a second and rank.</p>\n");
    curves(&page, "useful tokens a second over steps", &speed, 1);
    text_add(&page, "<h2>Books</h2>\n<p>Of all steps. A token is a piece of text or of "
             "an image, a slot a place for one in a batch.</p>\n");
    figures(&page, l);
    changes_add(&page, l);
    if (!samples_add(a, &page, run, r.data_hold_out > 0))
        return false;
    text_add(&page, "<h2>Recipe</h2><pre>");
    escaped(&page, recipe.at);
    text_add(&page, "</pre></body></html>\n");
    /* The page last: a run that has it looks for no more. */
    return file_replace(path_join(a, run, "loss.svg"), svg.at, svg.size) &&
           file_replace(path_join(a, run, "report.html"), page.at, page.size);
}

bool page_write(const char *run)
{
    struct arena a = arena_make("report");
    struct run_lines l = {0};
    bool ok = lines_read(&a, path_join(&a, run, "metrics.jsonl"), &l) &&
              pages_make(&a, run, &l);
    lines_free(&l);
    arena_free(&a);
    return ok || fail_kind(FAULT_USAGE);
}

bool page_renew(const char *run)
{
    struct arena a = arena_make("report");
    const char *lines = path_join(&a, run, "metrics.jsonl");
    bool empty = file_size(lines) <= 0;
    bool there = !file_older(path_join(&a, run, "report.html"), lines);
    arena_free(&a);
    if (empty)
        log_info("report", "no step was trained: there is nothing to report");
    return empty || there || page_write(run);
}
