/* outlook.c - builds the plan of a recipe and writes down what it says. */
#include "train/outlook.h"

#include "train/session.h"

static void memory_print(const struct session *s, struct text *t)
{
    const struct plan *p = s->plan;
    int64_t have = device_memory_free(), need = p->bytes + p->host_bytes;
    text_add(
        t,
        "\nlayout: 1 rank (pp 1 x dp 1 x cp 1 x tp 1; experts pp 1 x edp 1 x ep 1 x "
        "etp 1), %d rows a step\n",
        p->mbs);
    text_add(
        t,
        "memory: %.2f MiB on the device, of them %.2f MiB state; %.2f MiB parked on "
        "the host\n",
        (double)p->bytes / 1048576, (double)p->state_bytes / 1048576,
        (double)p->host_bytes / 1048576);
    if (need <= have)
        text_add(t, "fits: %.2f MiB of %.2f MiB free\n", (double)need / 1048576,
                 (double)have / 1048576);
}

static void work_print(struct session *s, struct text *t)
{
    struct work *work = NEW(&s->arena, struct work, s->plan->nstep), sum = {0};
    plan_work(s->plan, work);
    for (int64_t i = 0; i < s->plan->nstep; i++) {
        sum.flops += work[i].flops;
        sum.bytes += work[i].bytes;
    }
    text_add(t, "work: %.3f GFLOP and %.3f GB moved a step, at full rows\n",
             sum.flops / 1e9, sum.bytes / 1e9);
}

static bool fits(const struct plan *p)
{
    int64_t have = device_memory_free(), need = p->bytes + p->host_bytes;
    if (need <= have)
        return true;
    fail("plan: needs %.2f MiB, %.2f MiB are free; %s", (double)need / 1048576,
         (double)have / 1048576,
         p->state_bytes > have
             ? "weights, gradients and optimizer alone exceed it: freeze "
               "parts (model.freeze) or take a smaller model"
             : "lower batch.tokens or batch.patches, or set "
               "memory.recompute");
    return fail_kind(FAULT_MEMORY);
}

bool outlook(const struct recipe *r, bool explain, struct text *t)
{
    struct session s;
    bool ok = session_open(&s, r, true);
    if (ok) {
        model_table(&s.model, t);
        memory_print(&s, t);
        work_print(&s, t);
        text_add(t, "\n");
        plan_summary(s.plan, t);
        if (explain) {
            text_add(t, "\n");
            plan_explain(s.plan, t, -1);
        }
        ok = plan_check(s.plan);
        if (!ok)
            BUG("%s", fail_message());
        ok = fits(s.plan);
    }
    session_close(&s);
    return ok;
}
