/* metrics.c - the record of a run: JSON lines, event files and the progress line. */
#include "measure/metrics.h"

#include "base/file.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "measure/events.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINES_MOST = 1 << 30 };

struct metrics_log {
    FILE *file;
    const char *path;
    struct events *events;              /* NULL: not wanted, or nothing to say yet */
    struct arena *arena;
    const char *folder;                 /* of events, which begin after step `from` */
    int64_t from;
    const struct recipe *recipe;
    int world;
    double seconds;                     /* of a step, smoothed, for the time left */
    int64_t step;                       /* of the last line, 0: none */
    bool evaluated;                     /* it */
};

/* ---- one step ---- */

static double per_second(double amount, const struct metrics *m, int world)
{
    return m->step_ms > 0 ? 1e3 * amount / m->step_ms / world : 0;
}

static double useful_share(const struct ledger *l)
{
    return l->slots ? (double)ledger_useful(l) / (double)l->slots : 0;
}

static void real(json_t *j, const char *key, double x)
{
    json_object_set_new(j, key, isfinite(x) ? json_real(x) : json_null());
}

char *metrics_json(struct arena *a, const struct metrics *m, int world)
{
    const struct ledger *l = &m->ledger;
    const struct { const char *key; int64_t value; } count[] = {
        {"slots", l->slots}, {"useful_tokens", ledger_useful(l)},
        {"text_tokens", l->supervised + l->context}, {"image_tokens", l->image},
        {"supervised_tokens", l->supervised}, {"padding_tokens", l->padding},
        {"images", l->images}, {"patches", l->patches},
        {"padding_patches", l->patch_padding}, {"samples", l->samples},
        {"mock_samples", l->mock}, {"dropped_samples", l->dropped},
        {"too_long_samples", l->too_long}, {"unscored_samples", l->no_loss},
        {"lost_supervised_tokens", l->lost},
        {"shrunk_samples", l->shrunk}, {"cut_samples", l->cut}, {"epoch", m->epoch},
        {"peak_bytes", m->peak_bytes}, {"skipped_steps", m->skipped_steps},
        {"bad_samples", m->bad_samples},
    };
    json_t *j = json_object();
    json_object_set_new(j, "step", json_integer(m->step));
    real(j, "loss", m->loss);
    real(j, "aux_loss", m->aux_loss);
    real(j, "z_loss", m->z_loss);
    real(j, "grad_norm", m->grad_norm);
    real(j, "lr", m->lr);
    real(j, "step_ms", m->step_ms);
    real(j, "data_wait_ms", m->data_wait_ms);
    for (int i = 0; i < COUNT(count); i++)
        json_object_set_new(j, count[i].key, json_integer(count[i].value));
    real(j, "model_flops", m->model_flops);
    real(j, "hardware_flops", m->hardware_flops);
    real(j, "useful_tokens_per_s_per_gpu",
         per_second((double)ledger_useful(l), m, world));
    real(j, "model_tflops_per_gpu", per_second(m->model_flops, m, world) / 1e12);
    real(j, "expert_load_max_over_mean", m->expert_load_max_over_mean);
    real(j, "vision_load_max_over_mean", m->vision_load_max_over_mean);
    real(j, "vision_load_unbalanced", m->vision_load_unbalanced);
    json_object_set_new(j, "vision_crowded", json_integer(m->vision_crowded));
    if (m->changes) {
        json_t *list = json_array();
        char **line;
        int n = text_split(a, m->changes, "\n", &line);
        for (int i = 0; i < n; i++)
            json_array_append_new(list, json_string(line[i]));
        json_object_set_new(j, "changed", list);
    }
    json_object_set_new(j, "order", json_sprintf("%016" PRIx64, m->order_hash));
    char *text = json_dumps(j, JSON_COMPACT), *copy = arena_copy(a, text, strlen(text));
    free(text);
    json_decref(j);
    return copy;
}

/* ---- the log ---- */

/* A run of so many steps has a line for each; what is gone cannot be had again. */
static void gaps_say(const struct metrics_log *l, int64_t step, int64_t lines,
                     int64_t first)
{
    if (lines < step)
        log_warn("report", "%s: the lines of %" PRId64 " of the %" PRId64 " step(s) "
                 "done are missing, the first of step %" PRId64 "; curves and sums of "
                 "the report are without them", l->path, step - lines, step, first);
}

/* Lines of steps up to `step`; anything else came after the state that is resumed. */
static bool lines_keep(struct metrics_log *l, int64_t step)
{
    struct arena a = arena_make("metrics");
    struct bytes old;
    int64_t lines = 0, first = 1;       /* kept; the first step that has none */
    bool ok = file_read(&a, l->path, LINES_MOST, &old);
    struct text kept = text_make(&a);
    for (char *at = old.at, *end; ok && at < old.at + old.size; at = end + 1) {
        end = memchr(at, '\n', (size_t)(old.at + old.size - at));
        if (!end)
            break;                      /* torn */
        json_t *j = json_loadb(at, (size_t)(end - at), 0, NULL);
        json_t *n = json_object_get(j, "step");
        bool next = json_is_integer(n) && json_integer_value(n) > l->step;
        if (next && json_integer_value(n) <= step) {
            text_add_bytes(&kept, at, end - at + 1);
            lines++;
            first += json_integer_value(n) == first;
            l->step = json_integer_value(n);
            l->evaluated = json_object_get(j, "eval_loss") != NULL;
        }
        json_decref(j);
    }
    ok = ok && (kept.size == old.size || file_replace(l->path, kept.at, kept.size));
    if (ok)
        gaps_say(l, step, lines, first);
    arena_free(&a);
    return ok;
}

bool metrics_open(struct arena *a, const char *run, const struct recipe *r,
                  int64_t step, int world, struct metrics_log **out)
{
    struct metrics_log *l = NEW(a, struct metrics_log, 1);
    *l = (struct metrics_log){.recipe = r, .world = world, .arena = a, .from = step,
                              .folder = path_join(a, run, "events"),
                              .path = path_join(a, run, "metrics.jsonl")};
    if (!file_exists(l->path))
        gaps_say(l, step, 0, 1);
    else if (!lines_keep(l, step))
        return false;
    int fd;
    if (!file_descriptor(l->path, O_RDWR | O_CREAT, &fd))
        return false;
    l->file = fdopen(fd, "r+b");
    if (!l->file || fseek(l->file, 0, SEEK_END) != 0)
        return fail("report: open %s: %s", l->path, strerror(errno));
    *out = l;
    return true;
}

/* A run that has nothing more to say leaves no empty file. */
static bool events_ready(struct metrics_log *l)
{
    return l->events || events_open(l->arena, l->folder, l->from, &l->events);
}

static bool events_add(struct metrics_log *l, const struct metrics *m)
{
    const struct { const char *tag; double value; } scalar[] = {
        {"loss/train", m->loss}, {"loss/aux", m->aux_loss}, {"loss/z", m->z_loss},
        {"optim/grad_norm", m->grad_norm},
        {"optim/lr", m->lr}, {"data/useful_share", useful_share(&m->ledger)},
        {"speed/useful_tokens_per_s_per_gpu",
         per_second((double)ledger_useful(&m->ledger), m, l->world)},
        {"speed/supervised_tokens_per_s_per_gpu",
         per_second((double)m->ledger.supervised, m, l->world)},
        {"speed/images_per_s_per_gpu",
         per_second((double)m->ledger.images, m, l->world)},
        {"speed/model_tflops_per_gpu", per_second(m->model_flops, m, l->world) / 1e12},
        {"speed/step_ms", m->step_ms}, {"speed/data_wait_ms", m->data_wait_ms},
        {"experts/load_max_over_mean", m->expert_load_max_over_mean},
        {"vision/load_max_over_mean", m->vision_load_max_over_mean},
    };
    for (int i = 0; i < COUNT(scalar); i++)
        if (isfinite(scalar[i].value) &&
            !events_scalar(l->events, m->step, scalar[i].tag, scalar[i].value))
            return false;
    return events_flush(l->events);
}

/* How many steps the run has, as far as can be told. */
static const char *steps_text(const struct metrics_log *l, const struct metrics *m,
                              char *to, size_t size)
{
    if (!l->recipe->train_epochs)
        snprintf(to, size, "%" PRId64, l->recipe->train_steps);
    else if (m->last)
        snprintf(to, size, "%" PRId64, m->step);
    else
        snprintf(to, size, "~%.0f", (double)m->step / MAX(m->share, 1e-9));
    return to;
}

static void progress(struct metrics_log *l, const struct metrics *m)
{
    char left[32], steps[32], ranks[32] = "", line[256];
    double now = m->step_ms / 1e3, more = (1 - m->share) / MAX(m->share, 1e-9);
    l->seconds = l->seconds > 0 ? 0.9 * l->seconds + 0.1 * now : now;
    clock_text(left, sizeof left, l->seconds * (double)m->step * more);
    if (l->world > 1)
        snprintf(ranks, sizeof ranks, "  of all %d ranks", l->world);
    snprintf(line, sizeof line,
             "step %" PRId64 "/%s  loss %.4f  left %s  norm %.3f  lr %.2e  "
             "%.0f useful tokens/s (%.0f supervised)  %.1f images/s%s  "
             "%.0f%% full",
             m->step, steps_text(l, m, steps, sizeof steps), m->loss, left,
             m->grad_norm, m->lr, per_second((double)ledger_useful(&m->ledger), m, 1),
             per_second((double)m->ledger.supervised, m, 1),
             per_second((double)m->ledger.images, m, 1), ranks,
             100 * useful_share(&m->ledger));
    if (m->last || (!log_terminal() && m->step % l->recipe->train_log_every == 0))
        log_info("train", "%s", line);
    else
        log_progress("%s", line);
}

bool metrics_add(struct metrics_log *l, const struct metrics *m)
{
    struct arena a = arena_make("metrics");
    l->step = m->step;
    l->evaluated = false;
    bool ok = fprintf(l->file, "%s\n", metrics_json(&a, m, l->world)) > 0 &&
              fflush(l->file) == 0;
    arena_free(&a);
    if (!ok)
        return fail("report: write %s: %s", l->path, strerror(errno));
    progress(l, m);
    return !l->recipe->report_tensorboard || (events_ready(l) && events_add(l, m));
}

bool metrics_sync(const struct metrics_log *l)
{
    return fsync(fileno(l->file)) == 0 ||
           fail("report: sync %s: %s", l->path, strerror(errno));
}

bool metrics_evaluated(struct metrics_log *l, double loss)
{
    char value[32] = "null";
    REQUIRE(l->step > 0 && !l->evaluated);
    if (isfinite(loss))
        snprintf(value, sizeof value, "%.17g", loss);
    /* In one write over the end of the line, so the line is whole before and after. */
    if (fseek(l->file, -2, SEEK_END) != 0 ||
        fprintf(l->file, ",\"eval_loss\":%s}\n", value) < 0 || fflush(l->file) != 0)
        return fail("report: write %s: %s", l->path, strerror(errno));
    l->evaluated = true;
    log_info("train", "step %" PRId64 "  held-out loss %.4f", l->step, loss);
    return !l->recipe->report_tensorboard || !isfinite(loss) ||
           (events_ready(l) && events_scalar(l->events, l->step, "loss/eval", loss) &&
            events_flush(l->events));
}

bool metrics_unevaluated(const struct metrics_log *l, int64_t step)
{
    return step > 0 && l->step == step && !l->evaluated;
}

bool metrics_text(struct metrics_log *l, int64_t step, const char *tag,
                  const char *text)
{
    return !l->recipe->report_tensorboard ||
           (events_ready(l) && events_text(l->events, step, tag, text));
}

void metrics_phase(const char *phase)
{
    log_progress("%s ...", phase);
}

void metrics_close(struct metrics_log *l)
{
    if (l->file)
        fclose(l->file);
    if (l->events)
        events_close(l->events);
    l->file = NULL;
}
