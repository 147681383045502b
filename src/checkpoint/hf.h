/* hf.h - a model folder as Hugging Face transformers reads and writes it.
 *
 * Families: qwen3_vl_moe and qwen3_vl (dense).  Both rope spellings (rope_scaling with
 * rope_theta beside it, rope_parameters) and both num_experts and num_local_experts are
 * read; what was read is written back.  The layout of expert tensors on disk follows
 * the family, never a guess from shapes. */
#ifndef CHECKPOINT_HF_H
#define CHECKPOINT_HF_H

#include "checkpoint/safetensors.h"
#include "graph/config.h"
#include "graph/graph.h"

/* config.json -> numbers; fails naming the key, its value and what is supported. */
MUST_USE bool hf_config_read(struct arena *a, const char *folder,
                             struct model_config *out);
MUST_USE bool hf_config_parse(const char *name, const char *json, int64_t size,
                              struct model_config *out);
/* min and max pixels, mean and deviation of preprocessor_config.json, if there is one
 * (`found`); what it does not say keeps its value. */
struct hf_processor { int64_t min_pixels, max_pixels; float mean[3], std[3]; };
MUST_USE bool hf_processor_read(struct arena *a, const char *folder,
                                struct hf_processor *out, bool *found);

struct hf_folder {                      /* all weight files of a folder, mapped */
    const char *path;
    int nfile;
    struct safetensors *file;
    int64_t ntensor;
    const struct disk_tensor **tensor;  /* sorted by name */
};
/* model.safetensors or, where that is not there, the files of
 * model.safetensors.index.json.  A folder without either has no weights: hf_has_weights
 * says so beforehand. */
bool hf_has_torch_weights(const char *folder);   /* pytorch_model*.bin: not read here */
bool hf_has_weights(const char *folder);
MUST_USE bool hf_open(struct arena *a, const char *folder, struct hf_folder *out);
void hf_close(struct hf_folder *f);
const struct disk_tensor *hf_find(const struct hf_folder *f, const char *name);
/* Every parameter is there with the right shape; missing ones are listed, unused ones
 * warned of.  A tied head's lm_head.weight in the file must equal the embeddings. */
MUST_USE bool hf_check(const struct hf_folder *f, const struct param *p, int64_t count);
/* One parameter, whole, converted to f32 in the memory layout of `p` (see
 * param.transposed). */
MUST_USE bool hf_load(const struct hf_folder *f, const struct param *p, float *to);

/* Where hf_save gets a parameter's values from: f32, memory layout, whole. */
struct hf_weights {
    bool (*get)(void *arg, int64_t param, float *to);
    void *arg;
    const struct param *param;
    int64_t count;
    bool retype;                        /* write `dtype` whatever `from` has */
};
/* Write a folder that transformers loads: config and every other file of `from` copied
 * byte for byte, weights in shards of at most `shard_bytes` with an index when there is
 * more than one.  Tensors of `from` that the model does not know are carried through,
 * except a tied head.  Parameters keep the floating type they have in `from` unless
 * weights->retype, else take `dtype`.  The folder appears whole or not at all, in place
 * of an older model folder (with config.json) of that name but of no other. */
MUST_USE bool hf_save(const char *folder, const char *from,
                      const struct hf_weights *weights, enum dtype dtype,
                      int64_t shard_bytes);

/* Memory layout <-> disk layout of one parameter (the same unless p->transposed). */
void param_to_disk(const struct param *p, const float *memory, float *disk);
void param_from_disk(const struct param *p, const float *disk, float *memory);

#endif
