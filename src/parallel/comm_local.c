/* comm_local.c - members of a group are threads that read each other's buffers.
 *
 * A collective has three parts.  Enter: everyone leaves his call at his seat and waits
 * for the last, who compares them.  Work: each member computes his own share from the
 * others' buffers, without a lock.  Leave: nobody goes before all are done, since his
 * buffers are being read.  Only the wait to enter can be given up, and who gives up
 * closes the group, so work never begins without everyone.
 *
 * Messages are copied into mail that waits at the receiver's seat, in order. */
#include "parallel/local.h"

#include <errno.h>
#include <time.h>

enum { SIZES = 48 };                    /* powers of two that mail may have */

struct mail {
    struct mail *next;
    int from, size;                     /* size: of its buffer, 2^size bytes */
    struct comm_call call;
    void *data;
};

struct seat {
    pthread_cond_t wake;
    struct comm_call call;
    bool here;                          /* has come for the next collective */
    struct mail *first, **last;         /* mail for this member */
    int *waiting;                       /* [size]: how much of it, by sender */
};

struct group {
    struct world *world;
    struct group *next;
    const char *name;
    int size, lane;
    int *member;
    struct arena arena;                 /* holds the group itself */
    pthread_mutex_t lock;               /* of all that follows, and of the arena */
    struct seat *seat;                  /* [size] */
    const struct comm_call **call;      /* [size]: of the seats */
    int arrived, left;
    uint64_t begun;                     /* collectives that everyone has come for */
    bool closed;                        /* someone gave up: none begins any more */
    struct mail *spare[SIZES];
};

/* ---- telling what went wrong ---- */

/* " 0 1 2 3"; long lists end in dots. */
struct names { char text[96]; int size; };

static void names_add(struct names *n, int rank)
{
    int room = (int)sizeof n->text - n->size;
    if (room > 16)
        n->size += snprintf(n->text + n->size, (size_t)room, " %d", rank);
    else if (n->text[n->size - 1] != '.')
        n->size += snprintf(n->text + n->size, (size_t)room, " ...");
}

/* "comm: all_gather f32 x 12 of 'tp' (ranks 0 1)" */
struct label { char text[256]; };

static struct label label_of(const struct group *g, const struct comm_call *call)
{
    struct label label;
    struct names n = {{0}, 0};
    for (int i = 0; i < g->size; i++)
        names_add(&n, g->member[i]);
    snprintf(label.text, sizeof label.text, "comm: %s of '%.40s' (ranks%s)",
             comm_call_text(call), g->name, n.text);
    return label;
}

/* The loss of the world as the rank `own` sees it. */
static bool fail_lost(struct world *w, int own, const char *what)
{
    pthread_mutex_lock(&w->lock);
    struct failure why = w->failure;
    int lost = w->lost_rank, teller = w->teller;
    pthread_mutex_unlock(&w->lock);
    if (own == teller)
        return fail_raise(&why);
    fail("%s: rank %d was lost (%.600s)", what, lost, why.message);
    return fail_kind(FAULT_RANK);
}

/* This member found out: tell everyone. */
static bool fail_first(struct group *g, int own, int lost, enum fault fault)
{
    struct failure why;
    fail_kind(fault);
    fail_take(&why);
    world_lose(g->world, g->member[own], g->member[lost], &why);
    return fail_lost(g->world, g->member[own], why.message);
}

/* ---- waiting, under the group's lock ---- */

static struct timespec deadline(const struct group *g)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double whole = (double)(int64_t)g->world->patience;
    t.tv_sec += (time_t)whole;
    t.tv_nsec += (long)((g->world->patience - whole) * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

enum wait { WAIT_ON, WAIT_LOST, WAIT_ENDED, WAIT_LATE };

/* Sleeps until woken, unless there is a reason not to: the world is lost, the member
 * waited for (-1: nobody) has ended, or the deadline is over. */
static enum wait sleep_once(struct group *g, int own, int other,
                            const struct timespec *until)
{
    if (atomic_load(&g->world->lost))
        return WAIT_LOST;
    if (other >= 0 && atomic_load(&g->world->ended[g->member[other]]))
        return WAIT_ENDED;
    int error = pthread_cond_timedwait(&g->seat[own].wake, &g->lock, until);
    return error == ETIMEDOUT ? WAIT_LATE : WAIT_ON;
}

/* The failure of a wait for member `other`; the lock is free again. */
static bool give_up(struct group *g, int own, int other, const struct comm_call *call,
                    enum wait why)
{
    struct label label = label_of(g, call);
    if (why == WAIT_LOST)
        return fail_lost(g->world, g->member[own], label.text);
    if (why == WAIT_ENDED)
        fail("%s: rank %d has ended without it", label.text, g->member[other]);
    else
        fail("%s: rank %d waited %g s for rank %d", label.text, g->member[own],
             g->world->patience, g->member[other]);
    return fail_first(g, own, other, FAULT_RANK);
}

void group_wake(struct group *g)
{
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < g->size; i++)
        pthread_cond_signal(&g->seat[i].wake);
    pthread_mutex_unlock(&g->lock);
}

static void wake_others(struct group *g, int own)
{
    for (int i = 0; i < g->size; i++)
        if (i != own)
            pthread_cond_signal(&g->seat[i].wake);
}

/* ---- collectives ---- */

static bool alike(const struct comm_call *a, const struct comm_call *b)
{
    return a->op == b->op && a->dtype == b->dtype && a->count == b->count &&
           a->from == b->from;
}

/* Do all calls fit together?  Else the failure says who called what, and *odd is a
 * member that stands out. */
static bool calls_match(const struct group *g, int *odd)
{
    const struct comm_call *first = &g->seat[0].call;
    for (int i = 1; i < g->size; i++)
        if (!alike(first, &g->seat[i].call)) {
            char list[640] = "";
            int size = 0;
            for (int r = 0; r < g->size && size < (int)sizeof list - 120; r++)
                size += snprintf(list + size, sizeof list - (size_t)size,
                                 "%s rank %d %s", r ? "," : "", g->member[r],
                                 comm_call_text(&g->seat[r].call));
            *odd = i;
            return fail("comm: members of '%.40s' call different things:%s", g->name,
                        list);
        }
    for (int i = 0; first->op == COMM_ALL_TO_ALL_COUNTS && i < g->size; i++)
        for (int j = 0; j < g->size; j++) {
            int64_t sent = g->seat[i].call.in_count[j];
            int64_t expected = g->seat[j].call.out_count[i];
            *odd = j;
            if (sent != expected)
                return fail("comm: all_to_all_counts of '%.40s': rank %d sends %lld to "
                            "rank %d, which expects %lld", g->name, g->member[i],
                            (long long)sent, g->member[j], (long long)expected);
        }
    return true;
}

/* A member that has not come, if possible one that never will; -1: all are here. */
static int missing(const struct group *g)
{
    int late = -1;
    for (int i = 0; i < g->size; i++) {
        if (g->seat[i].here)
            continue;
        if (atomic_load(&g->world->ended[g->member[i]]))
            return i;
        late = late < 0 ? i : late;
    }
    return late;
}

static void begin(struct group *g, int own)
{
    g->begun++;
    g->arrived = g->left = 0;
    for (int i = 0; i < g->size; i++)
        g->seat[i].here = false;
    wake_others(g, own);
}

static bool enter(struct group *g, int own, const struct comm_call *call)
{
    pthread_mutex_lock(&g->lock);
    uint64_t mine = g->begun;
    int other = -1;
    g->seat[own].call = *call;
    g->seat[own].here = true;
    if (++g->arrived == g->size && !g->closed && !atomic_load(&g->world->lost)) {
        if (!calls_match(g, &other)) {
            g->closed = true;
            pthread_mutex_unlock(&g->lock);
            return fail_first(g, own, other, FAULT_BUG);
        }
        begin(g, own);
    }
    enum wait why = WAIT_ON;
    struct timespec until = deadline(g);
    while (g->begun == mine && why == WAIT_ON) {
        other = missing(g);
        why = sleep_once(g, own, other, &until);
        if (why == WAIT_LATE && (other < 0 || call->patient)) {
            why = WAIT_ON;              /* other -1: who closed it will say why */
            until = deadline(g);
        }
    }
    bool begun = g->begun != mine;
    g->closed |= !begun;
    pthread_mutex_unlock(&g->lock);
    return begun || give_up(g, own, other, call, why);
}

static void leave(struct group *g, int own)
{
    pthread_mutex_lock(&g->lock);
    if (++g->left == g->size)
        wake_others(g, own);
    while (g->left < g->size)
        pthread_cond_wait(&g->seat[own].wake, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* ---- messages ---- */

static size_t call_bytes(const struct comm_call *call)
{
    return (size_t)(call->count * dtype_bytes(call->dtype));
}

/* A buffer of 2^size bytes, used before or new: memory is bounded by the most mail that
 * ever waited. */
static struct mail *mail_take(struct group *g, size_t bytes)
{
    enum { LEAST = 8 };
    int size = LEAST;
    while (((size_t)1 << size) < bytes)
        size++;
    REQUIRE(size < SIZES);
    struct mail *m = g->spare[size];
    if (m) {
        g->spare[size] = m->next;
    } else {
        m = NEW(&g->arena, struct mail, 1);
        m->size = size;
        m->data = arena_room(&g->arena, (size_t)1 << size);
    }
    m->next = NULL;
    return m;
}

static bool post(struct group *g, int own, const struct comm_call *call)
{
    struct seat *to = &g->seat[call->to];
    struct timespec until = deadline(g);
    enum wait why = atomic_load(&g->world->lost) ? WAIT_LOST : WAIT_ON;
    pthread_mutex_lock(&g->lock);
    while (why == WAIT_ON && to->waiting[own] >= MAX_MAIL)
        why = sleep_once(g, own, call->to, &until);
    struct mail *m = why == WAIT_ON ? mail_take(g, call_bytes(call)) : NULL;
    pthread_mutex_unlock(&g->lock);
    if (!m)
        return give_up(g, own, call->to, call, why);
    m->from = own;
    m->call = *call;
    if (call->count)
        memcpy(m->data, call->in, call_bytes(call));
    pthread_mutex_lock(&g->lock);
    *to->last = m;
    to->last = &m->next;
    to->waiting[own]++;
    pthread_cond_signal(&to->wake);
    pthread_mutex_unlock(&g->lock);
    return true;
}

/* Takes the oldest mail from `from` out of the seat, or returns NULL. */
static struct mail *mail_find(struct seat *s, int from)
{
    for (struct mail **at = &s->first; *at; at = &(*at)->next)
        if ((*at)->from == from) {
            struct mail *m = *at;
            *at = m->next;
            if (!m->next)
                s->last = at;
            s->waiting[from]--;
            return m;
        }
    return NULL;
}

static bool mail_fits(const struct mail *m, const struct comm_call *call)
{
    bool both = (m->call.op == COMM_EXCHANGE) == (call->op == COMM_EXCHANGE);
    return both && m->call.dtype == call->dtype && m->call.count == call->count &&
           m->call.tag == call->tag;
}

static bool fetch(struct group *g, int own, const struct comm_call *call)
{
    struct timespec until = deadline(g);
    enum wait why = WAIT_ON;
    struct mail *m;
    pthread_mutex_lock(&g->lock);
    while (!(m = mail_find(&g->seat[own], call->from)) && why == WAIT_ON)
        why = sleep_once(g, own, call->from, &until);
    if (m)
        pthread_cond_signal(&g->seat[call->from].wake);         /* there is room */
    pthread_mutex_unlock(&g->lock);
    if (!m)
        return give_up(g, own, call->from, call, why);
    if (!mail_fits(m, call)) {
        fail("comm: '%.40s': rank %d calls %s, rank %d had called %s", g->name,
             g->member[own], comm_call_text(call), g->member[call->from],
             comm_call_text(&m->call));
        return fail_first(g, own, call->from, FAULT_BUG);
    }
    if (call->count)
        memcpy(call->out, m->data, call_bytes(call));
    pthread_mutex_lock(&g->lock);
    m->next = g->spare[m->size];
    g->spare[m->size] = m;
    pthread_mutex_unlock(&g->lock);
    return true;
}

/* ---- the table ---- */

static bool group_check(const struct comm *c)
{
    const struct group *g = c->group;
    return !atomic_load(&g->world->lost) ||
           fail_lost(g->world, c->member[c->rank], "comm: stopped");
}

static bool group_call(const struct comm *c, const struct comm_call *call)
{
    struct group *g = c->group;
    if (call->op == COMM_SEND)
        return post(g, c->rank, call);
    if (call->op == COMM_RECV)
        return fetch(g, c->rank, call);
    if (call->op == COMM_EXCHANGE)
        return post(g, c->rank, call) && fetch(g, c->rank, call);
    if (!enter(g, c->rank, call))
        return false;
    comm_work(g->call, g->size, c->rank);
    leave(g, c->rank);
    return true;
}

static const struct comm_ops comm_ops_local = {"local", group_call, group_check};

struct comm group_comm(struct group *g, int rank)
{
    int own = 0;
    while (own < g->size && g->member[own] != rank)
        own++;
    REQUIRE(own < g->size);
    return (struct comm){&comm_ops_local, g->name, own, g->size, g->member, g};
}

/* ---- groups ---- */

struct group *group_make(struct world *w, const char *name, const int *member, int size,
                         int lane, struct group *next)
{
    struct arena arena = arena_make("group");
    struct group *g = NEW(&arena, struct group, 1);
    *g = (struct group){.world = w, .next = next, .size = size, .lane = lane};
    g->name = arena_copy(&arena, name, strlen(name));
    g->member = NEW(&arena, int, size);
    g->seat = NEW(&arena, struct seat, size);
    g->call = NEW(&arena, const struct comm_call *, size);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    for (int i = 0; i < size; i++) {
        REQUIRE(member[i] >= 0 && member[i] < w->ranks);
        REQUIRE(i == 0 || member[i] > member[i - 1]);
        struct seat *s = &g->seat[i];
        g->member[i] = member[i];
        g->call[i] = &s->call;
        pthread_cond_init(&s->wake, &monotonic);
        s->last = &s->first;
        s->waiting = NEW(&arena, int, size);
    }
    pthread_condattr_destroy(&monotonic);
    g->arena = arena;
    return g;
}

struct group *group_next(const struct group *g)
{
    return g->next;
}

bool group_is(const struct group *g, const char *name, const int *member, int size,
              int lane)
{
    return g->lane == lane && g->size == size && strcmp(g->name, name) == 0 &&
           memcmp(g->member, member, sizeof *member * (size_t)size) == 0;
}

bool group_quiet(const struct group *g, int *to)
{
    for (int i = 0; i < g->size; i++)
        if (g->seat[i].first) {
            const struct mail *m = g->seat[i].first;
            *to = g->member[i];
            fail("comm: rank %d never took %s of '%.40s' from rank %d", *to,
                 comm_call_text(&m->call), g->name, g->member[m->from]);
            return fail_kind(FAULT_BUG);
        }
    return true;
}

void group_free(struct group *g)
{
    for (int i = 0; i < g->size; i++)
        pthread_cond_destroy(&g->seat[i].wake);
    pthread_mutex_destroy(&g->lock);
    struct arena arena = g->arena;
    arena_free(&arena);
}
