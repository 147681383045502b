/* test_strips.c - every element of any part of a param lies where the file format says.
 */
#include "check.h"

#include "base/random.h"
#include "checkpoint/strips.h"

enum { CASES = 4000, ROOM = 5000 };

static uint64_t drawn;

static int64_t draw(int64_t least, int64_t most)
{
    uint64_t bits = random_bits(random_key(5, "strips"), drawn++);
    return least + (int64_t)(bits % (uint64_t)(most - least + 1));
}

/* A param of which this rank has a box: dims divided evenly, one maybe fused. */
static struct param random_param(void)
{
    struct param p = {.name = "x", .ndim = (int)draw(1, 3)};
    p.transposed = p.ndim == 3 && draw(0, 1);
    int fused = p.ndim > 1 ? (int)draw(0, p.ndim - 1) : 0, n = 0;      /* 0: none */
    int64_t memory[3];
    for (int d = 0; d < p.ndim; d++)
        p.dim[d] = draw(1, 4) * (d == 1 || p.transposed ? 4 : 1);
    memcpy(memory, p.dim, sizeof memory);
    if (p.transposed)
        memory[1] = p.dim[2], memory[2] = p.dim[1];
    for (int d = 0; d < p.ndim; d++) {
        if (d == fused && d == 1 && memory[d] % 2 == 0) {
            p.box.dim[n] = p.box.size[n] = 2;
            memory[d] /= 2;
            n++;
        }
        int64_t parts = draw(1, 4);
        if (memory[d] % parts)
            parts = 1;
        p.box.dim[n] = memory[d];
        p.box.size[n] = memory[d] / parts;
        p.box.from[n] = draw(0, parts - 1) * p.box.size[n];
        n++;
    }
    p.box.ndim = n;
    return p;
}

/* Where element `global` of the tensor in memory is on disk. */
static int64_t disk_of(const struct param *p, bool swapped, int64_t global)
{
    if (!swapped)
        return global;
    int64_t rows = p->dim[1], cols = p->dim[2];
    int64_t matrix = global / (rows * cols), j = global / rows % cols;
    int64_t i = global % rows;
    return (matrix * rows + i) * cols + j;
}

static void test_every_element_once(void **state)
{
    (void)state;
    static bool seen[ROOM];
    int64_t strips = 0, elements = 0, swapped = 0, most = 0;
    for (int c = 0; c < CASES; c++) {
        struct param p = random_param();
        bool is_swapped = p.transposed && draw(0, 3);
        int64_t count = box_count(&p.box), end = -1, matrix = -1;
        struct stretch part = {draw(0, count), 0};
        part.to = draw(part.from, count);
        if (draw(0, 2) == 0)
            part = (struct stretch){0, count};
        memset(seen, 0, sizeof seen);
        struct strips iteration = strips_of(&p, is_swapped, part);
        for (struct strip s; strips_next(&iteration, &s);) {
            assert_true(s.count > 0);
            for (int64_t k = 0; k < s.count; k++) {
                int64_t at = s.memory + k * s.step;
                assert_true(at >= 0 && at < part.to - part.from && !seen[at]);
                seen[at] = true;
                int64_t global = box_global(&p.box, part.from + at);
                assert_int_equal(s.disk + k, disk_of(&p, is_swapped, global));
            }
            int64_t size = p.ndim == 3 ? p.dim[1] * p.dim[2] : INT64_MAX;
            assert_true(s.disk > end || s.disk / size == matrix);
            matrix = s.disk / size;
            end = s.disk + s.count - 1;
            strips++;
            elements += s.count;
            most = MAX(most, is_swapped ? s.count : 0);
        }
        for (int64_t i = 0; i < part.to - part.from; i++)
            assert_true(seen[i]);
        swapped += is_swapped;
    }
    assert_true(swapped > CASES / 10 && elements > 3 * strips && most == 16);
}

/* As few as there can be: a whole matrix is read row by row, a whole tensor at once. */
static void test_few(void **state)
{
    (void)state;
    struct param p = {.name = "x", .ndim = 3, .dim = {2, 5, 7},
                      .box = {3, {2, 5, 7}, {0}, {2, 5, 7}}};
    struct strips i = strips_of(&p, p.transposed, (struct stretch){3, 66});
    struct strip s;
    assert_true(strips_next(&i, &s));
    assert_true(s.disk == 3 && s.count == 63 && s.memory == 0 && s.step == 1);
    assert_false(strips_next(&i, &s));
    p.transposed = true;
    p.box = (struct box){3, {2, 7, 5}, {0}, {2, 7, 5}};
    i = strips_of(&p, p.transposed, (struct stretch){0, 70});
    for (int n = 0; n < 10; n++) {
        assert_true(strips_next(&i, &s));
        assert_true(s.disk == 7 * n && s.count == 7 && s.step == 5);
    }
    assert_false(strips_next(&i, &s));
    i = strips_of(&p, p.transposed, (struct stretch){70, 70});
    assert_false(strips_next(&i, &s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_element_once),
                                       cmocka_unit_test(test_few)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
