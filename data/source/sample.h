/* sample.h - one training sample as every reader hands it on: a conversation whose
 * messages are pieces of text and images in order. */
#ifndef SOURCE_SAMPLE_H
#define SOURCE_SAMPLE_H

#include "base/arena.h"
#include "base/file.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, ROLES };

struct piece {
    int image;                          /* index into sample.image, or -1: text */
    const char *text;                   /* UTF-8, placeholders already cut */
};

struct message {
    enum role role;
    int npiece;
    struct piece *piece;
    bool silent;                        /* an assistant turn that is not trained on */
};

struct image_source {                   /* exactly one of path and data */
    const char *path;                   /* a file, or NULL */
    struct bytes data;                  /* the file's bytes (data URI, tar member) */
    const char *name;                   /* for messages: path, or shard:member */
    const char *from;                   /* folder that the path began at; NULL: none */
};

struct sample {
    const char *name;                   /* where it is from: "file:line", "shard:key" */
    int64_t id;                         /* unique within the run: see mix.h */
    bool mock;                          /* not decoded from a real file */
    int nmessage, nimage;
    struct message *message;
    struct image_source *image;
};

#endif
