/* trace.c - one step as a picture: Chrome trace events, a track a lane, for Perfetto.
 *
 * Stands alone because it is a file format. */
#include "run/run.h"

static const char *span_name(const struct graph *g, const struct step *s)
{
    return s->node >= 0 ? g->node[s->node].kind->name
           : s->unit >= 0 ? g->unit[s->unit].name
                          : g->value[s->value].name;
}

void trace_json(const struct plan *p, const struct span *span, struct text *t)
{
    const struct graph *g = p->graph;
    double start = p->nstep > 0 ? span[0].start : 0;
    for (int64_t i = 0; i < p->nstep; i++)
        start = MIN(start, span[i].start);
    text_add(t, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (int l = 0; l < LANES; l++)
        text_add(t, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":%d,"
                    "\"args\":{\"name\":\"%s\"}}%s\n", l, lane_name[l],
                 l + 1 < LANES || p->nstep > 0 ? "," : "");
    for (int64_t i = 0; i < p->nstep; i++) {
        const struct step *s = &p->step[i];
        int layer = s->node >= 0 ? g->node[s->node].layer
                    : s->unit >= 0 ? g->unit[s->unit].layer : g->value[s->value].layer;
        text_add(t, "{\"name\":\"L%d.%s %s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":0,"
                    "\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"step\":%lld,"
                    "\"mb\":%d}}%s\n",
                 layer, span_name(g, s), s->again ? "again" : step_name[s->kind],
                 step_name[s->kind], s->lane, 1e6 * (span[i].start - start),
                 1e6 * (span[i].end - span[i].start), (long long)i, s->mb,
                 i + 1 < p->nstep ? "," : "");
    }
    text_add(t, "]}\n");
}
