/* hf.h - a model folder as Hugging Face transformers reads and writes it.
 *
 * Families: qwen3_vl_moe and qwen3_vl (dense).  Both rope spellings (rope_scaling with
 * rope_theta beside it, rope_parameters) and both num_experts and num_local_experts are
 * read; what was read is written back.  Expert tensors lie in one of two layouts, which
 * the shapes of a pair of them tell: no width fits both. */
#ifndef CHECKPOINT_HF_H
#define CHECKPOINT_HF_H

#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "graph/config.h"
#include "graph/graph.h"

/* config.json -> numbers; fails naming the key, its value and what is supported. */
MUST_USE bool hf_config_read(struct arena *a, const char *folder,
                             struct model_config *out);
MUST_USE bool hf_config_parse(const char *name, const char *json, int64_t size,
                              struct model_config *out);
/* A line for each thing that config.json says twice and differently; which counts. */
MUST_USE bool hf_config_notes(struct arena *a, const char *folder, struct text *notes);
/* Before anything is done with a folder: can its files be read?  No link may dangle,
 * no Git LFS pointer stand for a file, of those that are read here, or with `exports`
 * of all that an export copies.  Warns of what the config says twice and of links out
 * of the folder, which no export follows.  Where `folder` is none, says what was meant.
 */
MUST_USE bool hf_look(const char *folder, bool exports);
/* What preprocessor_config.json or processor_config.json says of images, where there is
 * one; what it does not say keeps its value.  Where both are they must say the same.
 * It fails, too, where they want other patches than are in `out`. */
struct hf_processor {
    const char *file;                   /* whose words these are; NULL: nobody's */
    int64_t min_pixels, max_pixels;
    float mean[3], std[3];
    int patch, frames, merge;           /* the config's */
};
MUST_USE bool hf_processor_read(struct arena *a, const char *folder,
                                struct hf_processor *out);

/* gate_up_proj and down_proj of D wide tokens and F wide experts. */
enum expert_layout {
    EXPERTS_AUTO,                       /* as the folder has them */
    EXPERTS_RELEASED,                   /* [E, D, 2F] and [E, F, D], as published */
    EXPERTS_TRANSFORMERS,               /* [E, 2F, D] and [E, D, F], as transformers
                                         * saves them since 5.24 */
};

struct hf_folder {                      /* all weight files of a folder, mapped */
    const char *path;
    int nfile;
    struct safetensors *file;
    int64_t ntensor;
    const struct disk_tensor **tensor;  /* sorted by name */
    enum expert_layout experts;         /* EXPERTS_AUTO: there are none */
};
bool hf_has_torch_weights(const char *folder);   /* pytorch_model*.bin: not read here */
/* model.safetensors or, where that is not there, the files of
 * model.safetensors.index.json.  A folder without either has no weights: hf_has_weights
 * says so beforehand.  The layout of experts is told by the shapes that these
 * parameters have in the files; fails naming two tensors that are not of one. */
bool hf_has_weights(const char *folder);
MUST_USE bool hf_open(struct arena *a, const char *folder, const struct param *p,
                      int64_t count, struct hf_folder *out);
void hf_close(struct hf_folder *f);
/* The file of the folder that holds this tensor of it. */
const struct safetensors *hf_file_of(const struct hf_folder *f,
                                     const struct disk_tensor *t);
const struct disk_tensor *hf_find(const struct hf_folder *f, const char *name);
/* Every parameter is there with the right shape; missing ones are listed, unused ones
 * warned of.  A tied head's lm_head.weight in the file must equal the embeddings. */
MUST_USE bool hf_check(const struct hf_folder *f, const struct param *p, int64_t count);
/* Elements `part` of p->box, converted to f32 in memory layout (see param.transposed);
 * nothing else of the tensor is read, and no memory is taken. */
MUST_USE bool hf_load(const struct hf_folder *f, const struct param *p,
                      struct stretch part, float *to);

/* Where hf_save gets this rank's share of the parameters from. */
struct hf_weights {
    /* Elements `part` of the param's box: f32, memory layout. */
    bool (*get)(void *arg, int64_t param, struct stretch part, float *to);
    void *arg;
    const struct param *param;
    const struct stretch *part;         /* [count] of each box: what this rank writes */
    int64_t count;
    bool retype;                        /* write `dtype` whatever `from` has */
    enum expert_layout experts;         /* EXPERTS_AUTO: as in `from`, else released */
    bool force;                         /* write what is not finite, too */
    const struct hf_folder *origin;     /* holds just what `get` gives, of whole params:
                                         * what keeps its layout is taken from there as
                                         * it lies; or NULL */
};
/* Write a folder that transformers loads: every other file of `from` copied byte for
 * byte, weights in files of at most `file_bytes` with an index when there is more than
 * one.  Tensors of `from` that the model does not know are carried through, except a
 * tied head.  Parameters keep the floating type they have in `from` unless
 * weights->retype, else take `dtype`; config.json then says so.  The folder appears
 * whole or not at all, in place of an older model folder (with config.json) of that
 * name but of no other.  A parameter that is not finite is refused (FAULT_NOT_FINITE).
 *
 * All members of `world` call it.  Where every byte will lie is known before: rank 0
 * makes the files, then each rank writes its own elements where they belong, taking
 * HF_BUFFER bytes at a time. */
enum { HF_BUFFER = 16 << 20 };
/* Behind a folder's name while it is being written: nobody else's folder. */
#define HF_PART ".vlmoe-part"
MUST_USE bool hf_save(const struct comm *world, const char *folder, const char *from,
                      const struct hf_weights *weights, enum dtype dtype,
                      int64_t file_bytes);

/* What hf_save would write if `from` had no weights. */
struct hf_outline { int64_t files, largest, bytes; };           /* of data */
struct hf_outline hf_outline(const struct param *p, int64_t count, enum dtype dtype,
                             int64_t file_bytes);

#endif
