/* files.h - the project's own files, for the tests that read them as text. */
#ifndef TESTS_LINT_FILES_H
#define TESTS_LINT_FILES_H

#include "base/text.h"
#include "base/file.h"

struct files { char **path; int64_t count, room; };    /* relative to the root */

static inline void files_add(struct arena *a, struct files *f, const char *path)
{
    GROW(a, f->path, f->count, f->room);
    f->path[f->count++] = arena_copy(a, path, strlen(path));
}

/* Every file below `folder` ("" is the root), without what .gitignore names. */
static inline void files_walk(struct arena *a, struct files *f, const char *folder)
{
    char **name;
    int64_t count;
    if (!folder_list(a, *folder ? folder : ".", &name, &count))
        BUG("%s", fail_message());
    for (int64_t i = 0; i < count; i++) {
        bool ignored = text_starts(name[i], "build") || strcmp(name[i], "runs") == 0 ||
                       strcmp(name[i], "cache") == 0 || name[i][0] == '.';
        char *path = path_join(a, folder, name[i]);
        if (!*folder && ignored)
            continue;
        if (folder_exists(path))
            files_walk(a, f, path);
        else
            files_add(a, f, path);
    }
}

/* In a git checkout what git tracks or would track; elsewhere (an unpacked archive, no
 * git) what the folders hold. */
static inline struct files files_all(struct arena *a)
{
    struct files f = {0};
    FILE *git = popen("git ls-files -z --cached --others --exclude-standard 2>&-", "r");
    REQUIRE(git);
    struct text path = text_make(a);
    for (int c; (c = getc(git)) != EOF;) {
        text_add_bytes(&path, &(char){(char)c}, 1);
        if (c != 0)
            continue;
        if (file_exists(path.at))       /* not: deleted, but still in git's list */
            files_add(a, &f, path.at);
        path = text_make(a);
    }
    if (pclose(git) != 0)
        f.count = 0;
    if (f.count == 0)
        files_walk(a, &f, "");
    return f;
}

static inline bool files_is_code(const char *path)
{
    return text_ends(path, ".c") || text_ends(path, ".h") || text_ends(path, ".cu") ||
           text_ends(path, ".cuh");
}

static inline const char *files_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

#endif
