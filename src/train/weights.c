/* weights.c - fills and exports a machine's parameters. */
#include "train/weights.h"

#include "base/random.h"

enum { SHARD_GB = 5 };                  /* of an exported weight file, 10^9 bytes */

void weights_fresh(const struct model *m, struct machine *machine, uint64_t seed)
{
    for (int i = 0; i < m->graph.nparam; i++) {
        const struct param *p = &m->graph.param[i];
        struct tensor w = machine_weight(machine, i);
        float *at = w.data;
        uint64_t key = random_key(seed, p->name);
        for (int64_t k = 0; k < tensor_count(w); k++)
            at[k] = p->initial == INITIAL_NORMAL
                        ? (float)(p->deviation * random_normal(key, (uint64_t)k))
                        : p->initial == INITIAL_ONE ? 1.0f : 0.0f;
    }
}

bool weights_load(const struct model *m, struct machine *machine, const char *folder)
{
    struct arena a = arena_make("weights");
    struct hf_folder f;
    bool ok = hf_open(&a, folder, &f);
    if (ok) {
        ok = hf_check(&f, m->graph.param, m->graph.nparam);
        for (int i = 0; i < m->graph.nparam && ok; i++)
            ok = hf_load(&f, &m->graph.param[i], machine_weight(machine, i).data);
        hf_close(&f);
    }
    arena_free(&a);
    return ok;
}

static bool weight_get(void *machine, int64_t param, float *to)
{
    struct tensor w = machine_weight(machine, (int)param);
    memcpy(to, w.data, sizeof *to * (size_t)tensor_count(w));
    return true;
}

bool weights_export(const struct model *m, const struct machine *machine, const char *folder,
                    const char *from, enum dtype dtype)
{
    const struct hf_weights weights = {
        .get = weight_get, .arg = (void *)machine,
        .param = m->graph.param, .count = m->graph.nparam,
    };
    return hf_save(folder, from, &weights, dtype, (int64_t)SHARD_GB * 1000000000);
}
