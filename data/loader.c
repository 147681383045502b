/* loader.c - samples in the order of the mix to rows in one order, by any number of
 * threads.
 *
 * Every sample the loader reads has a turn: first those that the cursor says still
 * wait, then the mix's positions.  Worker w of n encodes turns w, w + n, ... into a
 * queue of its own, and the packing thread pops the queues in rotation, so turns arrive
 * in order without anything shared.  All that decides is in that one thread (or in the
 * caller's, with 0 workers): rows are a function of the cursor.  Memory travels with
 * its item. */
#include "data/encode.h"

#include "base/clock.h"
#include "base/queue.h"

const char *const long_policy_name[] = {"drop", "shrink", "cut", "error", NULL};
const char *const bad_policy_name[] = {"skip", "fail", NULL};

enum { ITEMS_AHEAD = 4 };               /* encoded samples a worker keeps ready */

struct item {                           /* one sample, living in its own arena */
    struct arena arena;
    struct encoded encoded;
    enum cause cause;
    struct failure why;
};

struct ready {                          /* one row, living in its own arena */
    struct arena arena;
    struct row row;
    struct cursor cursor;               /* after this row */
    bool ok, end;
    struct failure why;                 /* if not ok */
    struct left_out *left;
    int64_t nleft, left_room;
};

struct loader {
    struct loader_options o;
    struct cursor from;
    /* the packing thread's */
    struct packer *packer;
    struct cursor at;                   /* its counts, as of the row being built */
    struct ledger books;                /* what was left out since the last row */
    int64_t turn;                       /* next to be taken */
    int64_t fruitless, unscored;        /* turns since the last sample of use; of them
                                         * without loss */
    struct item *refused;               /* by the packer, for the row after */
    struct item **held;                 /* [nheld] in the packer, in order */
    int nheld;
    int64_t *ticket;                    /* [segments] */
    const struct encoded **chosen;      /* [segments] */
    /* between threads */
    struct queue **items, *rows;        /* items: one a worker */
    struct workers *threads;
    /* the caller's */
    struct ready *current, **kept;      /* kept: [keep], the newest handed out */
    int keep;
    int64_t handed;
    struct cursor now;                  /* after the last row handed out */
    double waited;
};

/* ---- one sample ---- */

static struct item *item_make(const struct loader *l, int64_t position)
{
    struct arena a = arena_make("item"), scratch = arena_make("sample");
    struct item *it = NEW(&a, struct item, 1);
    struct mix_place place = mix_at(l->o.mix, position);
    const struct mix_part *part = mix_part(l->o.mix, place.part);
    struct encoded *e = &it->encoded;
    struct sample s;
    if (source_read(part->source, place.index, &scratch, &s)) {
        it->cause = sample_encode(&l->o, &s, &scratch, &a, e);
    } else {
        it->cause = CAUSE_BAD;
        e->name = arena_text(&a, "%s[%lld]", part->name, (long long)place.index);
    }
    e->id = mix_id(l->o.mix, place);
    e->position = position;
    e->part = place.part;
    if (it->cause != CAUSE_NONE)
        fail_take(&it->why);
    arena_free(&scratch);
    it->arena = a;
    return it;
}

static void item_free(struct item *it)
{
    if (!it)
        return;
    struct arena a = it->arena;
    arena_free(&a);
}

/* ---- turns ---- */

/* Position of a turn; false past the end. */
static bool turn_position(const struct loader *l, int64_t turn, int64_t *position)
{
    int64_t n = l->from.nwaiting;
    *position = turn < n ? l->from.waiting[turn] : l->from.position + turn - n;
    return turn < n || !l->o.positions || *position < l->o.positions;
}

/* The next turn's item, *out NULL at the end.  Fails if the loader is being closed. */
static bool turn_next(struct loader *l, struct item **out)
{
    int64_t position;
    *out = NULL;
    if (!turn_position(l, l->turn, &position))
        return true;
    *out = l->o.workers ? queue_pop(l->items[l->turn % l->o.workers])
                        : item_make(l, position);
    if (!*out)
        return fail("loader: closed");
    l->turn++;
    return true;
}

/* Where the data stands.  The turn of a refused item is still to come. */
static void cursor_take(const struct loader *l, struct cursor *out)
{
    int64_t turn = l->turn - (l->refused != NULL), n = l->from.nwaiting;
    *out = l->at;
    out->position = l->from.position + MAX(turn - n, 0);
    out->nwaiting = 0;
    for (int i = 0; i < l->nheld; i++)
        out->waiting[out->nwaiting++] = l->held[i]->encoded.position;
    for (int64_t i = turn; i < n; i++)
        out->waiting[out->nwaiting++] = l->from.waiting[i];
}

/* ---- one row ---- */

static struct ready *ready_make(void)
{
    struct arena a = arena_make("row");
    struct ready *r = NEW(&a, struct ready, 1);
    r->arena = a;
    return r;
}

static void ready_free(struct ready *r)
{
    if (!r)
        return;
    struct arena a = r->arena;
    arena_free(&a);
}

/* Book a sample that cannot be used; fails where policy or limits say so. */
static bool leave_out(struct loader *l, struct ready *r, const struct item *it)
{
    const char *name = it->encoded.name, *why = it->why.message;
    GROW(&r->arena, r->left, r->nleft, r->left_room);
    struct left_out *left = &r->left[r->nleft++];
    snprintf(left->name, sizeof left->name, "%s", name);
    snprintf(left->why, sizeof left->why, "%.*s", (int)sizeof left->why - 1, why);
    l->books.dropped++;
    l->fruitless++;
    if (it->cause == CAUSE_TOO_LONG) {
        l->at.too_long++, l->books.too_long++;
        l->books.lost += it->encoded.lost;
        if (l->o.too_long == LONG_ERROR)
            return fail("data: sample %s: %s", name, why);
    } else if (it->cause == CAUSE_NO_LOSS) {
        l->at.no_loss++, l->books.no_loss++, l->unscored++;
    } else {
        l->at.bad++, l->books.bad++, l->at.consecutive_bad++;
        if (l->o.bad == BAD_FAIL)
            return fail("data: sample %s: %s", name, why);
        if (l->at.consecutive_bad > l->o.bad_limit)
            return fail("data: %lld bad samples in a row, the limit is %d; the last is "
                        "%s: %s", (long long)l->at.consecutive_bad, l->o.bad_limit,
                        name, why);
    }
    /* A sample that comes first in one epoch may come last in the next. */
    int64_t epoch = mix_epoch_samples(l->o.mix);
    if (l->fruitless >= 2 * epoch - 1)
        return fail("data: a whole epoch of %lld samples and none can be used%s; the "
                    "last is %s: %s", (long long)epoch,
                    l->unscored < l->fruitless ? "" : ": no turn of any of them is to "
                    "be trained on (is the format right, are answers marked as the "
                    "assistant's, are all of them silenced?)", name, why);
    return true;
}

/* Offer samples until the packer has enough for a row, or there are no more: *flush. */
static bool gather(struct loader *l, struct ready *r, bool *flush)
{
    for (*flush = false;;) {
        struct item *it = l->refused;
        l->refused = NULL;
        if (!it && !turn_next(l, &it))
            return false;
        *flush = !it;
        if (!it)
            return true;
        if (it->cause != CAUSE_NONE) {
            bool go_on = leave_out(l, r, it);
            item_free(it);
            if (!go_on)
                return false;
            continue;
        }
        const struct encoded *e = &it->encoded;
        if (!packer_offer(l->packer, e->position, e->tokens, e->patches, e->nimage)) {
            l->refused = it;
            return true;
        }
        l->held[l->nheld++] = it;
        l->fruitless = l->unscored = 0;
        if (l->turn > l->from.nwaiting)     /* one that waited was counted before */
            l->at.consecutive_bad = 0;
    }
}

/* Copy the chosen samples into the row and let go of them. */
static void fill(struct loader *l, struct ready *r, int count)
{
    int left = 0, taken = 0;
    for (int i = 0; i < l->nheld && taken < count; i++)
        if (l->held[i]->encoded.position == l->ticket[taken])
            l->chosen[taken++] = &l->held[i]->encoded;
    REQUIRE(taken == count);
    row_fill(&r->arena, &l->o.shape, l->chosen, count, &r->row);
    taken = 0;
    for (int i = 0; i < l->nheld; i++) {
        if (taken < count && l->held[i]->encoded.position == l->ticket[taken]) {
            item_free(l->held[i]);
            taken++;
        } else {
            l->held[left++] = l->held[i];
        }
    }
    l->nheld = left;
    ledger_add(&r->row.ledger, &l->books);
    l->books = (struct ledger){0};
    if (!ledger_check(&r->row.ledger))
        BUG("%s", fail_message());
    l->at.rows++;
}

static struct ready *row_next(struct loader *l)
{
    struct ready *r = ready_make();
    bool flush;
    r->ok = gather(l, r, &flush);
    if (!r->ok) {
        fail_kind(FAULT_DATA);
        fail_take(&r->why);
        return r;
    }
    int count = packer_take(l->packer, flush, l->ticket, l->o.shape.segments);
    REQUIRE(count || flush);
    r->end = !count;
    if (count)
        fill(l, r, count);
    cursor_take(l, &r->cursor);
    return r;
}

/* ---- threads ---- */

static void pack_rows(struct loader *l)
{
    for (bool last = false; !last;) {
        struct ready *r = row_next(l);
        last = !r->ok || r->end;
        if (!queue_push(l->rows, r)) {
            ready_free(r);
            return;
        }
    }
}

static void encode_turns(const struct loader *l, int worker)
{
    int64_t position;
    for (int64_t t = worker; turn_position(l, t, &position); t += l->o.workers) {
        struct item *it = item_make(l, position);
        if (!queue_push(l->items[worker], it)) {
            item_free(it);
            return;
        }
    }
}

static void thread_main(void *arg, int index)
{
    if (index == 0)
        pack_rows(arg);
    else
        encode_turns(arg, index - 1);
}

/* ---- the caller's side ---- */

static bool options_check(const struct loader_options *o)
{
    const struct row_shape *s = &o->shape;
    REQUIRE(s->merge == o->image.merge && s->image_token == o->chat->image_pad);
    REQUIRE(s->values == 3 * o->image.frames * o->image.patch * o->image.patch);
    if (o->window < 1 || o->window > WINDOW_MAX)
        return fail("loader: window is %d samples, expected 1 to %d", o->window,
                    WINDOW_MAX);
    if (o->workers < 0 || o->ahead < 1 || o->hold < 0 || o->bad_limit < 0 ||
        o->positions < 0)
        return fail("loader: %d workers, %d rows ahead, %d held, limit of %d bad "
                    "samples, %lld positions; expected at least 0, 1, 0, 0, 0",
                    o->workers, o->ahead, o->hold, o->bad_limit,
                    (long long)o->positions);
    return true;
}

static bool cursor_check(const struct cursor *c)
{
    if (c->nwaiting < 0 || c->nwaiting > WINDOW_MAX || c->position < 0)
        return fail("loader: cursor at position %lld with %d samples waiting, expected "
                    "at least 0, and 0 to %d", (long long)c->position, c->nwaiting,
                    WINDOW_MAX);
    for (int i = 0; i < c->nwaiting; i++)
        if (c->waiting[i] < (i ? c->waiting[i - 1] + 1 : 0) ||
            c->waiting[i] >= c->position)
            return fail("loader: cursor at position %lld lists %lld as waiting, "
                        "expected rising positions below it", (long long)c->position,
                        (long long)c->waiting[i]);
    return true;
}

bool loader_open(struct arena *a, const struct loader_options *o,
                 const struct cursor *from, struct loader **out)
{
    if (!options_check(o))
        return fail_kind(FAULT_USAGE);
    if (from && !cursor_check(from))
        return fail_kind(FAULT_CHECKPOINT);
    struct loader *l = NEW(a, struct loader, 1);
    int segments = o->shape.segments;
    l->o = *o;
    if (from)
        l->from = l->at = l->now = *from;
    l->keep = MAX(o->hold, 1) + 1;
    l->kept = NEW(a, struct ready *, l->keep);
    l->packer = packer_make(a, &o->shape, o->window);
    l->held = NEW(a, struct item *, segments + o->window);
    l->ticket = NEW(a, int64_t, segments);
    l->chosen = NEW(a, const struct encoded *, segments);
    if (o->workers) {
        l->rows = queue_make(o->ahead);
        l->items = NEW(a, struct queue *, o->workers);
        for (int i = 0; i < o->workers; i++)
            l->items[i] = queue_make(ITEMS_AHEAD);
        l->threads = workers_start(1 + o->workers, thread_main, l);
    }
    *out = l;
    return true;
}

bool loader_next(struct loader *l, const struct row **out, bool *end)
{
    double start = clock_seconds();
    if (!l->current || (l->current->ok && !l->current->end)) {
        struct ready **slot = &l->kept[l->handed++ % l->keep];
        ready_free(*slot);
        l->current = *slot = l->o.workers ? queue_pop(l->rows) : row_next(l);
    }
    l->waited += clock_seconds() - start;
    const struct ready *r = l->current;
    *out = r->ok && !r->end ? &r->row : NULL;
    *end = r->end;
    if (!r->ok)
        return fail_raise(&r->why);
    l->now = r->cursor;
    return true;
}

void loader_cursor(const struct loader *l, struct cursor *out)
{
    *out = l->now;
}

double loader_wait_seconds(const struct loader *l)
{
    return l->waited;
}

int loader_left_out(const struct loader *l, struct left_out *out, int room)
{
    const struct ready *r = l->current;
    int count = r ? (int)MIN(r->nleft, room) : 0;
    if (count)
        memcpy(out, r->left + r->nleft - count, sizeof *out * (size_t)count);
    return count;
}

void loader_close(struct loader *l)
{
    if (!l)
        return;
    if (l->o.workers) {
        queue_close(l->rows);
        for (int i = 0; i < l->o.workers; i++)
            queue_close(l->items[i]);
        workers_join(l->threads);
        for (struct ready *r; (r = queue_pop(l->rows));)
            ready_free(r);
        queue_free(l->rows);
        for (int i = 0; i < l->o.workers; i++) {
            for (struct item *it; (it = queue_pop(l->items[i]));)
                item_free(it);
            queue_free(l->items[i]);
        }
    }
    for (int i = 0; i < l->nheld; i++)
        item_free(l->held[i]);
    item_free(l->refused);
    for (int i = 0; i < l->keep; i++)
        ready_free(l->kept[i]);
}
