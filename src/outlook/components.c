/* components.c - what a rank's step is made of: by component, summed over its plan.
 *
 * Stands alone because both the text and the JSON of an outlook read it. */
#include "outlook/outlook.h"

/* What has no segment: weights, gradients and values on their way, batches. */
static const char *part_of(const struct plan *p, const struct step *s)
{
    if (s->node >= 0)
        return p->graph->node[s->node].kind->component;
    switch (s->lane) {
    case LANE_STATE:
        return "state";
    case LANE_PIPE:
        return "stages";
    case LANE_COPY:
        return "copies";
    default:
        return "sums";
    }
}

int64_t outlook_parts(const struct outlook *o, const struct outlook_stage *s,
                      struct arena *a, struct outlook_part **out)
{
    const struct plan *p = s->session.plan;
    int64_t n = 0, room = 0;
    *out = NULL;
    for (int64_t i = 0; i < p->nstep; i++) {
        const char *name = part_of(p, &p->step[i]);
        int64_t k = 0;
        while (k < n && strcmp((*out)[k].name, name) != 0)
            k++;
        if (k == n) {
            GROW(a, *out, n, room);
            (*out)[n++] = (struct outlook_part){.name = name};
        }
        struct outlook_part *x = &(*out)[k];
        bool talks = p->step[i].lane != LANE_COMPUTE && p->step[i].lane != LANE_COPY;
        double talk = talks ? s->cost[i] : s->talk[i];
        const struct step *step = &p->step[i];
        if (step->node >= 0)
            x->flops += workload_flops(&o->load, &p->graph->node[step->node],
                                       &s->work[i]);
        x->talk += talk;
        x->compute += s->cost[i] - talk;
        x->inside += s->work[i].inside;
        x->across += s->work[i].across;
    }
    return n;
}
