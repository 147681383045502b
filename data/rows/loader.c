/* loader.c - samples in the order of the mix to rows in one order, by any number of
 * threads.
 *
 * Every sample the loader reads has a turn: first those that the cursor says still
 * wait, then the mix's positions.  Worker w of n measures turns w, w + n, ... into a
 * queue of its own, and the packing thread pops the queues in rotation, so turns arrive
 * in order without anything shared.  Sizes are enough to choose a row's samples; only
 * then do n more workers decode its images, whoever is last fills the row.  So what
 * waits to be chosen is text and files, never pixels, and the first row is there once
 * its own images are decoded.
 *
 * All that decides is in the packing thread and, about images that turn out to be bad,
 * in the caller's, row by row (all in the caller's with 0 workers): rows are a function
 * of the cursor.  Memory travels with its item. */
#include "data/rows/encode.h"

#include "base/clock.h"
#include "base/queue.h"

#include <stdatomic.h>


enum {
    ITEMS_AHEAD = 4,                    /* measured samples a worker keeps ready */
    JOBS = 64,                          /* chosen ones that wait for a decoder */
    KEEP_BYTES = 1 << 18,               /* of a sample's files while it waits; larger
                                         * ones are read again */
};

struct item {                           /* one sample, living in its own arena */
    struct arena arena;
    struct encoded encoded;
    struct mix_place place;
    struct bytes *file;                 /* [nimage] of its images; NULL: not kept */
    struct ready *row;                  /* it was chosen for */
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
    struct ledger books;                /* what was left out on the way to it */
    /* until it is filled, by whoever loads the last of its items */
    struct item **item;                 /* [count] chosen, in order */
    int count;
    atomic_int todo;                    /* items to load, and one for the packer */
    struct queue *full;                 /* NULL without workers */
    bool *broken;                       /* [count] was its image bad after all? */
};

struct loader {
    struct loader_options o;
    struct cursor from;
    /* the packing thread's */
    struct packer *packer;
    struct cursor at;                   /* its counts, as of the row being built */
    struct ledger books;                /* what was left out since the last row, by size
                                         * and text */
    int64_t turn;                       /* next to be taken */
    int64_t fruitless, unscored;        /* turns since the last sample of use; of them
                                         * without loss */
    struct item *refused;               /* by the packer, for the row after */
    struct item **held;                 /* [nheld] in the packer, in order */
    int nheld;
    int64_t *ticket;                    /* [segments] */
    /* between threads */
    struct queue **items, *jobs, *rows; /* items: one a worker; jobs: items to load */
    struct workers *threads;
    atomic_bool closing;
    /* the caller's */
    struct ready *current, **kept;      /* kept: [keep], the newest handed out */
    int keep;
    int64_t handed;
    int64_t broken, broken_in_row;      /* samples whose images were bad after all */
    struct cursor now;                  /* after the last row handed out */
    double waited;
};

/* ---- one sample ---- */

/* Small files stay with their sample while it waits. */
static void files_keep(struct arena *a, struct item *it, const struct bytes *file)
{
    int64_t bytes = 0;
    for (int k = 0; k < it->encoded.nimage; k++)
        bytes += file[k].size;
    if (bytes > KEEP_BYTES)
        return;
    it->file = NEW(a, struct bytes, it->encoded.nimage);
    for (int k = 0; k < it->encoded.nimage; k++)
        it->file[k] = (struct bytes){
            arena_copy(a, file[k].at, (size_t)file[k].size), file[k].size};
}

static struct item *item_make(const struct loader *l, int64_t position)
{
    struct arena a = arena_make("item"), scratch = arena_make("sample");
    struct item *it = NEW(&a, struct item, 1);
    const struct mix_place place = it->place = mix_at(l->o.mix, position);
    const struct mix_part *part = mix_part(l->o.mix, place.part);
    struct encoded *e = &it->encoded;
    struct bytes *file = NULL;
    struct sample s;
    if (source_read(part->source, place.index, &scratch, &s)) {
        it->cause = sample_measure(&l->o, &s, &scratch, &a, &file, e);
        if (it->cause == CAUSE_NONE)
            files_keep(&a, it, file);
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

/* The files of a sample once more, as they were when it was measured. */
static bool files_again(const struct loader *l, const struct item *it,
                        struct arena *scratch, struct sample *s, struct bytes **file)
{
    const struct mix_part *part = mix_part(l->o.mix, it->place.part);
    if (!source_read(part->source, it->place.index, scratch, s))
        return false;
    if (s->nimage != it->encoded.nimage)
        return fail("%s: it changed while it waited for its row", s->name);
    *file = it->file;
    if (it->file)
        return true;
    *file = NEW(scratch, struct bytes, s->nimage);
    for (int k = 0; k < s->nimage; k++)
        if (!image_source_read(scratch, &s->image[k], &(*file)[k]))
            return false;
    return true;
}

/* Pixels of a chosen sample; it may turn out to be bad. */
static void item_load(const struct loader *l, struct item *it)
{
    struct arena scratch = arena_make("sample");
    struct sample s;
    struct bytes *file = NULL;
    if (!files_again(l, it, &scratch, &s, &file) ||
        !sample_load(&l->o, &s, file, &it->arena, &it->encoded)) {
        it->cause = CAUSE_BAD;
        fail_take(&it->why);
        fail_clear();
    }
    arena_free(&scratch);
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
    if (r->full)
        queue_free(r->full);
    arena_free(&a);
}

static void left_add(struct ready *r, const char *name, const char *why)
{
    GROW(&r->arena, r->left, r->nleft, r->left_room);
    struct left_out *left = &r->left[r->nleft++];
    snprintf(left->name, sizeof left->name, "%s", name);
    snprintf(left->why, sizeof left->why, "%.*s", (int)sizeof left->why - 1, why);
}

/* By policy and limit: `bad` of them in a row, the last is this. */
static bool bad_permitted(const struct loader *l, int64_t bad, const char *name,
                          const char *why)
{
    if (l->o.bad == BAD_FAIL)
        return fail("data: sample %s: %s", name, why);
    return bad <= l->o.bad_limit ||
           fail("data: %lld bad sample(s) in a row, the limit is %d; the last is %s: "
                "%s",
                (long long)bad, l->o.bad_limit, name, why);
}

/* A sample that comes first in one epoch may come last in the next. */
static bool fruitful(const struct loader *l, int64_t fruitless, bool unscored,
                     const char *name, const char *why)
{
    int64_t epoch = mix_epoch_samples(l->o.mix);
    return fruitless < 2 * epoch - 1 ||
           fail("data: a whole epoch of %lld sample(s) and none can be used%s; the "
                "last "
                "is %s: %s", (long long)epoch,
                unscored ? ": no turn of any of them is to be trained on (is the "
                           "format right, are answers marked as the assistant's, are "
                           "all of them silenced?)" : "", name, why);
}

/* Book a sample that cannot be used; fails where policy or limits say so, and where the
 * machine could not read it. */
static bool leave_out(struct loader *l, struct ready *r, const struct item *it)
{
    const char *name = it->encoded.name, *why = it->why.message;
    if (it->why.error)
        return fail_raise(&it->why) || fail_in("data: sample %s", name);
    left_add(r, name, why);
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
        if (!bad_permitted(l, l->at.consecutive_bad, name, why))
            return false;
    }
    return fruitful(l, l->fruitless, l->unscored == l->fruitless, name, why);
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

/* The chosen samples leave the window for the row. */
static void hand_over(struct loader *l, struct ready *r, int count)
{
    int left = 0;
    r->item = NEW(&r->arena, struct item *, count);
    r->broken = NEW(&r->arena, bool, count);
    for (int i = 0; i < l->nheld; i++) {
        struct item *it = l->held[i];
        if (r->count < count && it->encoded.position == l->ticket[r->count])
            r->item[r->count++] = it;
        else
            l->held[left++] = it;
    }
    REQUIRE(r->count == count);
    l->nheld = left;
    r->books = l->books;
    l->books = (struct ledger){0};
}

/* All its items are loaded: copy those that are good into the row, let go of them. */
static void row_finish(const struct loader *l, struct ready *r)
{
    const struct encoded **good = NEW(&r->arena, const struct encoded *, r->count + 1);
    int n = 0;
    for (int i = 0; i < r->count; i++) {
        const struct item *it = r->item[i];
        r->broken[i] = it->cause != CAUSE_NONE;
        if (it->why.error)
            r->why = it->why;
        if (!r->broken[i]) {
            good[n++] = &it->encoded;
            continue;
        }
        left_add(r, it->encoded.name, it->why.message);
        r->books.bad++, r->books.dropped++;
    }
    if (n && !atomic_load(&l->closing))         /* else some are not loaded */
        row_fill(&r->arena, &l->o.shape, good, n, &r->row);
    for (int i = 0; i < r->count; i++)
        item_free(r->item[i]);
    r->item = NULL;
    if (r->full && !queue_push(r->full, r))
        BUG("a row's own queue is closed");
}

/* One item less to wait for. */
static void item_done(const struct loader *l, struct ready *r)
{
    if (atomic_fetch_sub(&r->todo, 1) == 1)
        row_finish(l, r);
}

/* With workers their work, else done here. */
static void row_load(struct loader *l, struct ready *r)
{
    atomic_store(&r->todo, r->count + 1);
    r->full = l->o.workers ? queue_make(1) : NULL;
    for (int i = 0; i < r->count; i++) {
        struct item *it = r->item[i];
        it->row = r;
        bool job = it->encoded.nimage > 0 && !atomic_load(&l->closing);
        if (job && l->o.workers && queue_push(l->jobs, it))
            continue;
        if (job && !l->o.workers)
            item_load(l, it);
        item_done(l, r);
    }
    item_done(l, r);
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
        hand_over(l, r, count);
    cursor_take(l, &r->cursor);
    if (count)
        row_load(l, r);
    return r;
}

/* Filled, or nothing to fill. */
static void row_wait(const struct ready *r)
{
    if (r->full && queue_pop(r->full) != r)
        BUG("a row is not its own");
}

/* ---- threads ---- */

static void pack_rows(struct loader *l)
{
    for (bool last = false; !last;) {
        struct ready *r = row_next(l);
        last = !r->ok || r->end;
        if (!queue_push(l->rows, r)) {
            row_wait(r);
            ready_free(r);
            return;
        }
    }
}

static void measure_turns(const struct loader *l, int worker)
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

static void load_items(const struct loader *l)
{
    for (struct item *it; (it = queue_pop(l->jobs));) {
        struct ready *r = it->row;
        if (!atomic_load(&l->closing))
            item_load(l, it);
        item_done(l, r);
    }
}

static void thread_main(void *arg, int index)
{
    const struct loader *l = arg;
    if (index == 0)
        pack_rows(arg);
    else if (index <= l->o.workers)
        measure_turns(l, index - 1);
    else
        load_items(l);
}

/* ---- the caller's side ---- */

int64_t loader_bytes(const struct loader_options *o)
{
    const struct row_shape *s = &o->shape;
    int64_t T = s->tokens, P = s->patches, pixels = P * s->values * 4;
    int64_t row = T * (1 + 1 + 3 + 1) * 4 + P / (s->merge * s->merge) * 4 + P * 16;
    int64_t rows = MAX(o->hold, 1) + 1 + o->ahead + 2, loading = o->ahead + 2;
    int64_t waiting = o->window + MIN(s->segments, s->images) +
                      (int64_t)o->workers * (ITEMS_AHEAD + 1) + 1;
    return rows * (row + pixels) + loading * pixels +
           waiting * (KEEP_BYTES + T * (4 + 1));
}

static bool options_check(const struct loader_options *o)
{
    const struct row_shape *s = &o->shape;
    REQUIRE(s->merge == o->image.merge && s->image_token == o->chat->image_pad);
    REQUIRE(s->values == 3 * o->image.frames * o->image.patch * o->image.patch);
    if (o->window < 1 || o->window > WINDOW_MAX)
        return fail("loader: window is %d sample(s), expected 1 to %d", o->window,
                    WINDOW_MAX);
    if (o->workers < 0 || o->ahead < 1 || o->hold < 0 || o->bad_limit < 0 ||
        o->positions < 0)
        return fail("loader: %d worker(s), %d row(s) ahead, %d held, limit of %d bad "
                    "sample(s), %lld position(s); expected at least 0, 1, 0, 0, 0",
                    o->workers, o->ahead, o->hold, o->bad_limit,
                    (long long)o->positions);
    return true;
}

static bool cursor_check(const struct cursor *c)
{
    if (c->nwaiting < 0 || c->nwaiting > WINDOW_MAX || c->position < 0)
        return fail("loader: cursor at position %lld with %d sample(s) waiting, "
                    "expected "
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
    l->broken_in_row = l->from.broken_in_row;
    l->keep = MAX(o->hold, 1) + 1;
    l->kept = NEW(a, struct ready *, l->keep);
    l->packer = packer_make(a, &o->shape, o->window);
    l->held = NEW(a, struct item *, segments + o->window);
    l->ticket = NEW(a, int64_t, segments);
    if (o->workers) {
        l->rows = queue_make(o->ahead);
        l->items = NEW(a, struct queue *, o->workers);
        for (int i = 0; i < o->workers; i++)
            l->items[i] = queue_make(ITEMS_AHEAD);
        l->jobs = queue_make(JOBS);
        l->threads = workers_start(1 + 2 * o->workers, thread_main, l);
    }
    *out = l;
    return true;
}

/* Samples of the row whose images were bad after all: permitted, by policy and limits?
 * What was left out for a row of which nothing remained (`before`, else NULL) is booked
 * with the next one. */
static bool row_judge(struct loader *l, struct ready *r, const struct ready *before)
{
    int64_t at = r->nleft;
    if (r->why.error)                   /* the machine's, no sample's */
        return fail_raise(&r->why) || fail_in("data");
    for (int i = 0; i < r->count; i++)
        at -= r->broken[i];
    for (int i = 0; i < r->count; i++) {
        l->broken += r->broken[i];
        l->broken_in_row = r->broken[i] ? l->broken_in_row + 1 : 0;
        if (!r->broken[i])
            continue;
        const struct left_out *x = &r->left[at++];
        if (!bad_permitted(l, l->broken_in_row, x->name, x->why) ||
            !fruitful(l, l->broken_in_row, false, x->name, x->why)) {
            r->nleft = at;
            fail_kind(FAULT_DATA);
            return false;
        }
    }
    for (int64_t i = 0; before && i < before->nleft; i++)
        left_add(r, before->left[i].name, before->left[i].why);
    if (before)
        ledger_add(&r->books, &before->books);
    return true;
}

/* The next row with anything in it, or the end, or what failed. */
static struct ready *row_take(struct loader *l)
{
    for (struct ready *before = NULL, *r;; before = r) {
        r = l->o.workers ? queue_pop(l->rows) : row_next(l);
        row_wait(r);
        if (r->ok && !row_judge(l, r, before)) {
            r->ok = false;
            fail_take(&r->why);
        }
        ready_free(before);
        if (r->ok && !r->end && !r->row.nsample)
            continue;
        if (r->ok && !r->end) {
            ledger_add(&r->row.ledger, &r->books);
            if (!ledger_check(&r->row.ledger))
                BUG("%s", fail_message());
        }
        r->cursor.rows = l->now.rows + (r->ok && !r->end);
        r->cursor.bad += l->broken;
        r->cursor.broken_in_row = l->broken_in_row;
        return r;
    }
}

bool loader_next(struct loader *l, const struct row **out, bool *end)
{
    double start = clock_seconds();
    if (!l->current || (l->current->ok && !l->current->end)) {
        struct ready **slot = &l->kept[l->handed++ % l->keep];
        ready_free(*slot);
        l->current = *slot = row_take(l);
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
        atomic_store(&l->closing, true);
        queue_close(l->rows);
        queue_close(l->jobs);
        for (int i = 0; i < l->o.workers; i++)
            queue_close(l->items[i]);
        workers_join(l->threads);       /* by then all jobs are done with */
        for (struct ready *r; (r = queue_pop(l->rows));)
            ready_free(r);
        queue_free(l->rows);
        queue_free(l->jobs);
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
