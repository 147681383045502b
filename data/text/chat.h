/* chat.h - a conversation as token ids and labels, in the model family's template.
 *
 *   <|im_start|>user\n<|vision_start|><|image_pad|>..<|vision_end|>text<|im_end|>\n
 *   <|im_start|>assistant\nanswer<|im_end|>\n
 *
 * Tool results that follow one another share a user turn, each between <tool_response>
 * lines.  The ids are those of the whole conversation written out and tokenized at
 * once, but text that looks like a control token or an image's marker stays text.
 * Other special tokens in it (<|box_start|>) are kept as such, or stay text too.
 *
 * Scored (they carry loss): the answer's tokens and its <|im_end|>, not the newline
 * after it; of a silent turn nothing.  A token is the answer's if it ends past the
 * header "assistant\n".  Where the tokenizer joins that newline to one that the answer
 * starts with, the joined token is scored: no other carries that part of the answer. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "data/source/sample.h"
#include "data/text/tokenizer.h"

struct chat {
    const struct tokenizer *tokenizer;
    int im_start, im_end, vision_start, vision_end, image_pad;
    enum special special;               /* SPECIAL_KEEP (as made) or SPECIAL_TEXT */
};
/* Fails naming the token that the tokenizer lacks or does not treat as special. */
MUST_USE bool chat_make(const struct tokenizer *t, struct chat *out);

struct dialogue {                       /* ids of one sample */
    struct ids input;
    bool *scored;                       /* [input.count] */
    int64_t special;                    /* special tokens that were in the text */
};
/* image_tokens[i] copies of image_pad stand for image i; images come in order, each
 * once.  With `prompt`, only what comes before the last answer is wanted: a last
 * message of the assistant is left out, and the ids end in "<|im_start|>assistant\n".
 * Fails on what the template has no place for: a system message that is not the first,
 * an image outside user and tool messages, images missing or left over.  The caller
 * adds the sample's name. */
MUST_USE bool chat_encode(const struct chat *c, struct arena *a, const struct sample *s,
                          const int *image_tokens, bool prompt, struct dialogue *out);

#endif
