/* test_bounded.c - how much host memory saving, loading, importing and exporting take:
 * so much a rank, whatever the size of the model and of its largest tensor; and that
 * an export writes by megabytes, though memory has the experts swapped.
 *
 * The linker sends this program's allocations and writes through the functions named
 * __wrap_ below (tests/CMakeLists.txt), and jansson's go there too: all bytes are
 * counted. */
#include "check.h"

#include "base/text.h"
#include "checkpoint/hf.h"
#include "checkpoint/state.h"
#include "parallel/world.h"

#include <jansson.h>
#include <malloc.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { E = 4, R = 768, MIB = 1 << 20, SMALL = MIB };

/* ---- counting ---- */

static atomic_llong bytes, peak;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void __real_free(void *at);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
void __wrap_free(void *at);

static void *counted(void *at)
{
    long long now = atomic_fetch_add(&bytes, (long long)malloc_usable_size(at));
    long long most = atomic_load(&peak);
    now += (long long)malloc_usable_size(at);
    while (now > most && !atomic_compare_exchange_weak(&peak, &most, now))
        ;
    return at;
}

void *__wrap_malloc(size_t size)
{
    return counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return counted(__real_calloc(n, size));
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    return counted(__real_aligned_alloc(align, size));
}

void __wrap_free(void *at)
{
    atomic_fetch_sub(&bytes, (long long)malloc_usable_size(at));
    __real_free(at);
}

static atomic_int writes;

ssize_t __real_pwrite(int fd, const void *from, size_t size, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t size, off_t at);

ssize_t __wrap_pwrite(int fd, const void *from, size_t size, off_t at)
{
    atomic_fetch_add(&writes, 1);
    return __real_pwrite(fd, from, size, at);
}

/* ---- a model: a table and experts, of which the ranks have equal stretches ---- */

struct job {
    const char *root, *from, *to;
    int64_t cols;
    float *data;                        /* of both params; not counted */
};

static float *data_of(const struct job *j, int param)
{
    return j->data + (param ? j->cols * R : 0);
}

static void params_make(int64_t cols, struct param p[2])
{
    p[0] = (struct param){.name = "model.language_model.embed_tokens.weight", .ndim = 2,
                          .dim = {cols, R}, .box = {2, {cols, R}, {0}, {cols, R}}};
    p[1] = (struct param){.name = "experts", .ndim = 3, .dim = {E, R, cols},
                          .transposed = true,
                          .box = {3, {E, cols, R}, {0}, {E, cols, R}}};
}

static struct stretch share(const struct param *p, const struct rank *r)
{
    struct flat f = flat_make(box_count(&p->box), r->ranks, 1);
    return flat_part(&f, r->rank, 0, f.count);
}

static bool get(void *arg, int64_t param, struct stretch part, float *to)
{
    const struct job *j = arg;
    memcpy(to, data_of(j, (int)param) + part.from,
           sizeof *to * (size_t)(part.to - part.from));
    return true;
}

static struct comm world_of(struct rank *r)
{
    int *member = NEW(&r->arena, int, r->ranks);
    for (int i = 0; i < r->ranks; i++)
        member[i] = i;
    return world_comm(r, "world", member, r->ranks, 0);
}

static bool rank_export(struct rank *r, void *arg)
{
    const struct job *j = arg;
    struct param p[2];
    params_make(j->cols, p);
    struct stretch part[] = {share(&p[0], r), share(&p[1], r)};
    const struct hf_weights w = {.get = get, .arg = arg, .param = p, .part = part,
                                 .count = 2};
    const struct comm world = world_of(r);
    return hf_save(&world, j->to, j->from, &w, DTYPE_BF16, 64 * MIB);
}

/* What was read is not looked at here. */
static bool rank_import(struct rank *r, void *arg)
{
    const struct job *j = arg;
    struct param p[2];
    struct hf_folder f;
    params_make(j->cols, p);
    bool ok = hf_open(&r->arena, j->to, p, 2, &f) && hf_check(&f, p, 2);
    for (int i = 0; i < 2 && ok; i++)
        ok = hf_load(&f, &p[i], share(&p[i], r),
                     data_of(j, i) + share(&p[i], r).from);
    hf_close(&f);
    return ok;
}

static bool rank_save(struct rank *r, void *arg)
{
    const struct job *j = arg;
    struct param p[2];
    struct state_piece piece[2];
    params_make(j->cols, p);
    for (int i = 0; i < 2; i++) {
        piece[i] = (struct state_piece){p[i].name, DTYPE_F32, p[i].box, share(&p[i], r),
                                        NULL};
        piece[i].data = data_of(j, i) + piece[i].part.from;
    }
    const struct comm world = world_of(r);
    return state_save(&world, j->root, 1, piece, 2, "{}", 1);
}

/* Cut the other way: every rank reads what all have written. */
static bool rank_load(struct rank *r, void *arg)
{
    const struct job *j = arg;
    struct param p[2];
    struct state s;
    params_make(j->cols, p);
    if (!state_open(&r->arena, j->root, 1, &s))
        return false;
    for (int i = 0; i < 2; i++) {
        struct box b = p[i].box;
        b.size[b.ndim - 1] /= r->ranks;
        b.from[b.ndim - 1] = r->rank * b.size[b.ndim - 1];
        int64_t count = box_count(&b);
        const struct state_piece want = {p[i].name, DTYPE_F32, b, {0, count}, NULL};
        if (!state_read(&s, &want, data_of(j, i) + r->rank * count))
            return false;
    }
    return true;
}

/* The most bytes that were taken on top of those before. */
static long long most_of(int ranks, bool (*main)(struct rank *r, void *arg),
                         struct job *j)
{
    long long before = atomic_load(&bytes);
    atomic_store(&peak, before);
    assert_ok(world_run(ranks, 0, main, j));
    assert_true(atomic_load(&bytes) - before < 1 << 12);        /* all given back */
    return atomic_load(&peak) - before;
}

static void test_bounds(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        bool (*main)(struct rank *r, void *arg);
        int64_t each;                   /* bytes of a rank */
    } kind[] = {
        {"export", rank_export, HF_BUFFER + MIB}, {"import", rank_import, 0},
        {"save", rank_save, 0}, {"load", rank_load, (4 + 1) * MIB},
    };
    struct arena a = arena_make("test");
    char *root = check_folder(&a), *from = path_join(&a, root, "from");
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    assert_ok(folder_make(from));
    assert_ok(file_replace(path_join(&a, from, "config.json"), "{}", 2));
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        long long was[COUNT(kind)];
        for (int scale = 0; scale < 2; scale++) {
            int64_t cols = scale ? 9216 : 4608;         /* 54 or 108 MiB of experts */
            size_t size = (size_t)((1 + E) * R * cols) * sizeof(float);
            struct job j = {root, from, path_join(&a, root, "model"), cols, NULL};
            j.data = mmap(NULL, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            assert_true(j.data != MAP_FAILED);
            for (int k = 0; k < COUNT(kind); k++) {
                atomic_store(&writes, 0);
                long long most = most_of(ranks, kind[k].main, &j);
                print_message("%s by %d ranks, %d MiB: %lld KiB\n", kind[k].what, ranks,
                              (int)(size >> 20), most >> 10);
                assert_true(most <= ranks * kind[k].each + SMALL);
                assert_true(most >= ranks * kind[k].each / 2);  /* it is counted */
                assert_true(!scale || most - was[k] < SMALL / 4);
                was[k] = most;
                if (kind[k].main == rank_export && ranks == 1 && !scale)
                    assert_true(atomic_load(&writes) < (int)(size / MIB));
            }
            munmap(j.data, size);
        }
    }
    assert_ok(folder_remove(root));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
