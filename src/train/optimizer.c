/* optimizer.c - one update of all parameters from their summed gradients. */
#include "train/optimizer.h"

#include "base/log.h"
#include "base/random.h"

#include <inttypes.h>
#include <math.h>

/* From 1 to the floor while `done` goes from 0 to 1. */
static double cosine(const struct recipe *r, double done)
{
    double wave = 0.5 * (1 + cos(3.14159265358979323846 * MIN(done, 1)));
    return r->optim_floor + (1 - r->optim_floor) * wave;
}

double schedule_rate(const struct recipe *r, int64_t step, double share)
{
    double warmup = (double)r->optim_warmup, steps = (double)r->train_steps;
    double at = (double)step, risen = at < warmup ? at / warmup : 1;
    double decay = (double)r->optim_decay_steps, from = steps - decay;
    bool counted = !r->train_epochs;    /* else by epochs: who knows how many steps */
    if (counted && at <= warmup)
        return r->optim_lr * at / warmup;
    switch (r->optim_schedule) {
    case optim_schedule_cosine:
        if (!counted)
            return r->optim_lr * risen * cosine(r, share);
        return r->optim_lr *
               cosine(r, steps > warmup ? (at - warmup) / (steps - warmup) : 1);
    case optim_schedule_wsd:
        if (!counted || at <= from)
            break;
        return r->optim_lr * (1 - (1 - r->optim_floor) * MIN((at - from) / decay, 1));
    case optim_schedule_constant:
        break;
    }
    return counted ? r->optim_lr : r->optim_lr * risen;
}

void schedule_warn(const struct recipe *r)
{
    int64_t last = r->train_steps;
    if (r->optim_lr == 0)
        log_warn("optim", "optim.lr is 0: nothing is learnt");
    else if (!r->train_epochs && last > 0 && r->optim_warmup >= last)
        log_warn("optim", "optim.warmup %" PRId64 " is not below train.steps %" PRId64
                 ": the learning rate only rises, to %g of optim.lr %g, and nothing of "
                 "optim.schedule %s comes after", r->optim_warmup, last,
                 (double)last / (double)r->optim_warmup, r->optim_lr,
                 recipe_word("optim.schedule", (int)r->optim_schedule));
}

double part_rate(const struct recipe *r, enum part part)
{
    const double rate[PARTS] = {
        [PART_VISION] = r->optim_lr_vision, [PART_PROJECTOR] = r->optim_lr_projector,
        [PART_EMBEDDINGS] = r->optim_lr_embeddings,
        [PART_DECODER] = r->optim_lr_decoder, [PART_ROUTER] = r->optim_lr_router,
        [PART_EXPERTS] = r->optim_lr_experts,
    };
    return rate[part];
}

/* Over the whole model: each element counts once, on the rank that speaks for it. */
static bool global_norm(const struct model *m, struct machine *machine,
                        const struct ops *ops, struct stream *stream, double *norm)
{
    double sum = 0;
    struct tensor out = tensor_1d(&sum, DTYPE_F64, 1);
    for (int i = 0; i < m->graph.nparam; i++) {
        struct stretch part;
        struct tensor grad = machine_own(machine, HELD_GRADIENT, i, &part);
        if (part.from < part.to && param_speaks(machine_plan(machine), i))
            ops->square_sum(stream, grad, 1, out);
    }
    bool ok = comm_all_reduce(machine_world(machine), DTYPE_F64, &sum, 1);
    *norm = sqrt(sum);
    return ok || fail_kind(FAULT_RANK);
}

bool optimizer_step(const struct recipe *r, const struct model *m,
                    struct machine *machine, const struct ops *ops,
                    struct stream *stream, double rate, int64_t updates,
                    struct update *out)
{
    struct update u = {.rate = rate};
    if (!global_norm(m, machine, ops, stream, &u.grad_norm))
        return false;
    u.skipped = !isfinite(u.grad_norm);
    *out = u;
    if (u.skipped)
        return true;
    double clip = r->optim_clip > 0 ? MIN(r->optim_clip / (u.grad_norm + 1e-6), 1) : 1;
    double count = (double)(updates + 1);
    uint64_t noise = random_bits(random_key((uint64_t)r->run_seed, "rounding"),
                                 (uint64_t)updates);
    struct adamw h = {
        .beta1 = (float)r->optim_beta1, .beta2 = (float)r->optim_beta2,
        .epsilon = (float)r->optim_epsilon, .scale = (float)clip,
        .correct1 = (float)(1 - pow(r->optim_beta1, count)),
        .correct2 = (float)(1 - pow(r->optim_beta2, count)),
    };
    for (int i = 0; i < m->graph.nparam; i++) {
        const struct param *p = &m->graph.param[i];
        struct stretch part;
        struct tensor grad = machine_own(machine, HELD_GRADIENT, i, &part);
        if (part.from == part.to)
            continue;
        h.rate = (float)(u.rate * part_rate(r, p->part));
        h.decay = p->decay ? (float)r->optim_decay : 0;
        h.noise = random_bits(noise, (uint64_t)i);
        h.first = part.from;
        struct tensor weight = machine_own(machine, HELD_WEIGHT, i, &part);
        struct tensor master = machine_own(machine, HELD_MASTER, i, &part);
        ops->adamw(stream, grad, h, master, machine_own(machine, HELD_FIRST, i, &part),
                   machine_own(machine, HELD_SECOND, i, &part));
        if (master.data != weight.data)
            ops->copy(stream, master, weight);
    }
    return true;
}
