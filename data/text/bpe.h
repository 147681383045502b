/* bpe.h - a vocabulary and its merges: bytes to the fewest symbols, by rank.
 *
 * Apart from the tokenizer because it knows neither JSON nor Unicode: a word is bytes,
 * a symbol an id.  Made once, then read-only; what a caller writes is its own work. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "base/arena.h"
#include "data/text/tokenizer.h"

/* From pairs of ids to the symbol they merge into; the lowest rank merges first. */
struct bpe {
    int32_t byte[256];                  /* ids of the single bytes */
    int shift;                          /* 64 - log2 of the table's places */
    struct bpe_pair { uint64_t pair; int32_t rank, id; } *table;    /* id -1: free */
};
/* Room for `merges` merges; the bytes' ids are the caller's to fill in. */
struct bpe bpe_make(struct arena *a, int64_t merges);
/* The next merge; a pair given twice keeps its last rank. */
void bpe_add(struct bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);

struct bpe_work {                       /* memory that words of one caller share */
    int64_t room;
    struct bpe_symbol *symbol;
    struct bpe_merge *heap;
};
/* Append the ids of one word.  Time is size log size, whatever the word. */
void bpe_word(const struct bpe *b, struct arena *a, struct bpe_work *w,
              const char *word, int64_t size, struct ids *out);

#endif
