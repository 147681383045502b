/* scratch.h - a folder of files that a data test makes and removes. */
#ifndef TESTS_DATA_SCRATCH_H
#define TESTS_DATA_SCRATCH_H

#include "check.h"

#include "base/file.h"
#include "base/text.h"
#include "data/source/source.h"

#include <stdlib.h>

/* A whole PNG: one red pixel. */
static const unsigned char png[] = {
    0x89, 'P',  'N',  'G',  13,   10,  26,  10,  0,   0,    0,    13,   'I',  'H',
    'D',  'R',  0,    0,    0,    1,   0,   0,   0,   1,    8,    2,    0,    0,
    0,    0x90, 0x77, 0x53, 0xde, 0,   0,   0,   12,  'I',  'D',  'A',  'T',  0x78,
    0xda, 0x63, 0xf8, 0xcf, 0xc0, 0,   0,   3,   1,   1,    0,    0xf7, 0x03, 0x41,
    0x43, 0,    0,    0,    0,    'I', 'E', 'N', 'D', 0xae, 0x42, 0x60, 0x82};

struct scratch {
    struct arena arena;
    char *folder;
};

static inline struct scratch scratch_make(void)
{
    struct scratch s = {.arena = arena_make("scratch")};
    const char *top = getenv("TMPDIR");
    s.folder = arena_text(&s.arena, "%s/vlmoe-XXXXXX", top ? top : "/tmp");
    assert_non_null(mkdtemp(s.folder));
    return s;
}

static inline void scratch_remove(struct scratch *s)
{
    assert_true(folder_remove(s->folder));
    arena_free(&s->arena);
}

static inline char *scratch_bytes(struct scratch *s, const char *name, const void *from,
                                  size_t size)
{
    char *path = path_join(&s->arena, s->folder, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    assert_true(folder_make(path));
    *slash = '/';
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(from, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    return path;
}

static inline char *scratch_text(struct scratch *s, const char *name, const char *text)
{
    return scratch_bytes(s, name, text, strlen(text));
}

static inline char *scratch_png(struct scratch *s, const char *name)
{
    return scratch_bytes(s, name, png, sizeof png);
}

static inline struct source *scratch_open(struct scratch *s, const char *path,
                                          const char *format)
{
    struct source_options o = {.path = path, .format = format};
    struct source *out;
    if (!source_open(&s->arena, &o, &out))
        fail_msg("%s", fail_message());
    return out;
}

/* Does the message hold all these words?  Printed when not. */
static inline void assert_says(const char *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (!strstr(fail_message(), words[i]))
            fail_msg("'%s' is missing in: %s", words[i], fail_message());
}
#define ASSERT_SAYS(...)                                                               \
    assert_says((const char *[]){__VA_ARGS__}, COUNT(((const char *[]){__VA_ARGS__})))

/* A sample as text: "user[<0>What?] assistant[A cat.]" */
static inline char *sample_print(struct arena *a, const struct sample *s)
{
    static const char *const role[] = {"system", "user", "assistant", "tool"};
    struct text t = text_make(a);
    for (int i = 0; i < s->nmessage; i++) {
        const struct message *m = &s->message[i];
        text_add(&t, "%s%s%s[", i ? " " : "", m->silent ? "silent " : "",
                 role[m->role]);
        for (int k = 0; k < m->npiece; k++)
            if (m->piece[k].image < 0)
                text_add(&t, "%s", m->piece[k].text);
            else
                text_add(&t, "<%d>", m->piece[k].image);
        text_add(&t, "]");
    }
    return t.at;
}

/* Sample `index` as text, or why it is bad. */
static inline char *read_text(struct scratch *s, const struct source *from,
                              int64_t index)
{
    struct sample got;
    if (!source_read(from, index, &s->arena, &got))
        return arena_text(&s->arena, "bad: %s", fail_message());
    assert_int_equal(got.id, index);
    return sample_print(&s->arena, &got);
}

#endif
