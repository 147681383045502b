/* left_out.c - a set of names by their hashes, so that a bad sample does not flood the
 * log, epoch after epoch. */
#include "train/left_out.h"

#include "base/log.h"

#include <xxhash.h>

enum { SLOTS = 1 << 16, SHOWN = 64 };   /* of one row */

struct left_names { int64_t count; uint64_t slot[SLOTS]; };

/* Half the slots at most are used; names after that are said no more. */
static bool is_new(struct session *s, const char *name)
{
    if (!s->left)
        s->left = NEW(&s->arena, struct left_names, 1);
    struct left_names *l = s->left;
    uint64_t hash = XXH3_64bits(name, strlen(name)) | 1;        /* 0: an empty slot */
    int64_t at = (int64_t)(hash >> 32) % SLOTS;
    while (l->slot[at] && l->slot[at] != hash)
        at = (at + 1) % SLOTS;
    if (l->slot[at] || l->count == SLOTS / 2)
        return false;
    l->slot[at] = hash;
    if (++l->count == SLOTS / 2)
        log_warn("data", "more samples are left out than named; the books count all");
    return true;
}

void left_out_say(struct session *s, const char *name, const char *why)
{
    if (!is_new(s, name))
        return;
    size_t n = strlen(name);            /* many causes begin with the name */
    bool named = !strncmp(why, name, n) && why[n] == ':';
    if (named)
        why += n + 1 + (why[n + 1] == ' ');
    log_warn("data", "left out: %s: %s", name, why);
}

void left_out_row(struct session *s, const struct loader *l)
{
    struct left_out gone[SHOWN];
    int n = loader_left_out(l, gone, COUNT(gone));
    for (int i = 0; i < n; i++)
        left_out_say(s, gone[i].name, gone[i].why);
}
