/* source.h - a data set as numbered samples, whatever its format.
 *
 *   folder       images with a caption in NAME.txt beside each (first line); either
 *                without the other is a bad sample
 *   llava, qwen  "conversations" of from/value, "image" or "images": a path or a list;
 *                "<image>" marks each image's place and owns one line break beside it
 *   imagefolder  metadata.jsonl: "file_name" with "text" or "caption" (Hugging Face)
 *   sharegpt     the same, or "messages" of role/content; text stays exactly as it is
 *                (LLaMA-Factory)
 *   alpaca       "instruction", "input", "output"; images and text as in sharegpt
 *   openai       "messages" with content parts; image_url path, file://, data:; a part
 *                {"type": "image"} alone takes the next of "images"
 *   webdataset   tar shards (numbered braces, a glob or a folder) + an index made on
 *                first use beside each
 *   auto         decided by what is there; says what it decided
 *
 * The JSON formats are read from a list [...] or from one object a line, told apart by
 * the first byte.  A key given twice makes a bad sample, as do videos, images on the
 * network and keys that nobody knows (docs/data.md).  An assistant message with
 * "weight": 0, "loss": false or "train": false is silent.
 *
 * "<image>" in text is a placeholder only where the format says so, then there are as
 * many as images; in other formats it stays text beside images.  Without any image it
 * makes a bad sample: one is missing.
 * A source is read-only after source_open and shared by all workers. */
#ifndef SOURCE_SOURCE_H
#define SOURCE_SOURCE_H

#include "data/source/sample.h"

struct source;
struct source_options {
    const char *path;                   /* file, folder, or shards "x-{000..012}.tar" */
    const char *format;                 /* see above */
    const char *images;                 /* where image paths start; NULL: the file's */
    const char *prompt;                 /* captions: what the user says; */
                                        /* NULL "Describe the image.", "" none */
    const char *match;                  /* keep names like this (fnmatch, with "@(a|b)"
                                         * and its like), or, after "!", unlike it */
    int64_t limit;                      /* then keep the first n; 0 all */
    const char *ignore;                 /* JSON keys and types of shard members that are
                                         * not read, in words; NULL none */
};
MUST_USE bool source_open(struct arena *a, const struct source_options *o,
                          struct source **out);
void source_close(struct source *s);
int64_t source_count(const struct source *s);
const char *source_format(const struct source *s);      /* what "auto" became */
/* What the format leaves out of the path's folder, in a sentence; NULL: nothing. */
const char *source_remark(const struct source *s);
/* Sample `index`, in `item` memory.  Thread-safe.  Its name is FOLDER/IMAGE, FILE:LINE
 * (lines), FILE[INDEX] (a list) or SHARD:KEY; `match` sees it without the source's own
 * folder.  Its id is the index; a mix gives it a number of the run (mix_id).  Fails
 * with that name in front; image files are looked for by image_source_read only. */
MUST_USE bool source_read(const struct source *s, int64_t index, struct arena *item,
                          struct sample *out);
/* xxHash64 for the data contract: options, and names and sizes of images, captions and
 * tar members, or a JSON file's bytes.  Where the folder lies does not count. */
uint64_t source_hash(const struct source *s);
/* Could both hold one file under different indices?  So where one's path is or contains
 * the other's, unless it is the same path with the same `match`. */
bool sources_overlap(const struct source *a, const struct source *b);
/* The bytes of one image; `item` owns them.  A failure begins with "image NAME: ". */
MUST_USE bool image_source_read(struct arena *item, const struct image_source *from,
                                struct bytes *out);

#endif
