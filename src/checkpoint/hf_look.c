/* hf_look.c - what can be known of a model folder before hours are spent on it: that
 * its files are there and can be read, what its config says twice, what an export will
 * leave out; and what may have been meant by a folder that is none. */
#include "checkpoint/hf_parts.h"

#include "base/log.h"
#include "base/text.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

enum { LFS_MOST = 1024 };               /* bytes of a Git LFS pointer */

/* ---- links ---- */

/* Where a link points; NULL: it is none. */
static char *link_of(struct arena *a, const char *path)
{
    char target[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof target);
    return n < 0 ? NULL : arena_copy(a, target, (size_t)n);
}

static char *real_of(struct arena *a, const char *path)
{
    char real[PATH_MAX];
    return realpath(path, real) ? arena_copy(a, real, strlen(real)) : NULL;
}

static bool within(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return !strncmp(path, folder, n) && path[n] == '/';
}

/* The hub's cache has a model's files in REPO/blobs, and links in REPO/snapshots/X. */
static char *blobs_of(struct arena *a, const char *folder)
{
    char *copy = arena_copy(a, folder, strlen(folder)), *slash = strrchr(copy, '/');
    if (!slash)
        return NULL;
    *slash = 0;
    return text_ends(copy, "/snapshots")
               ? arena_text(a, "%.*s/blobs", (int)(strlen(copy) - strlen("/snapshots")),
                            copy)
               : NULL;
}

bool hf_leaves(struct arena *a, const char *folder, const char *name)
{
    char *path = path_join(a, folder, name), *home = real_of(a, folder);
    if (!link_of(a, path))
        return false;
    char *real = real_of(a, path), *blobs = home ? blobs_of(a, home) : NULL;
    return real && home && !within(real, home) && !(blobs && within(real, blobs));
}

/* ---- what else was meant ---- */

/* The name in an address on the hub: OWNER/NAME, whatever follows; NULL: it is none. */
static const char *hub_address(struct arena *a, const char *path)
{
    static const char *const host[] = {"https://huggingface.co/", "https://hf.co/",
                                       "http://huggingface.co/", "huggingface.co/",
                                       "hf.co/", "hf://"};
    for (int i = 0; i < COUNT(host); i++)
        if (text_starts(path, host[i])) {
            const char *name = path + strlen(host[i]);
            size_t owner = strcspn(name, "/?#"), all = owner + (name[owner] == '/');
            return arena_copy(a, name, all + strcspn(name + all, "/?#@"));
        }
    return NULL;
}

/* "Qwen/Qwen3-VL-30B-A3B-Instruct" */
static bool hub_name(const char *path)
{
    const char *slash = strchr(path, '/');
    struct arena a = arena_make("owner");
    bool there = slash && folder_exists(arena_copy(&a, path, (size_t)(slash - path)));
    arena_free(&a);
    if (there)                          /* a path after all */
        return false;
    int slashes = 0;
    for (const char *c = path; *c; c++) {
        slashes += *c == '/';
        if (!isalnum((unsigned char)*c) && !strchr("/-_.", *c))
            return false;
    }
    return slashes == 1 && isalnum((unsigned char)*path) && !text_ends(path, "/");
}

/* The first folder in `path` that holds a file of this name; NULL: none. */
static const char *inner_with(struct arena *a, const char *path, const char *file)
{
    char **name;
    int64_t count = 0;
    if (!folder_exists(path) || !folder_list(a, path, &name, &count)) {
        fail_clear();
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) {
        char *inner = path_join(a, path, name[i]);
        if (file_exists(path_join(a, inner, file)))
            return inner;
    }
    return NULL;
}

static bool absent(struct arena *a, const char *path)
{
    static const char manifest[] = "manifest.json";
    char here[PATH_MAX] = "?";
    const char *state = inner_with(a, path, manifest);
    const char *cached = inner_with(a, path_join(a, path, "snapshots"), config_name);
    if (file_exists(path_join(a, path, "model/config.json")))
        return fail("model: %s is the folder of a run; its trained model is %s/model",
                    path, path);
    if (file_exists(path_join(a, path, "metrics.jsonl")))
        return fail("model: %s is the folder of a run that is not done: it has no "
                    "model yet (vlmoe convert %s/checkpoints/step-N DIR makes one of a "
                    "state)", path, path);
    if (file_exists(path_join(a, path, manifest)))
        return fail("model: %s is a training state, not a model folder; vlmoe convert "
                    "%s DIR makes one of it", path, path);
    if (state)
        return fail("model: %s holds training states, it is no model folder; vlmoe "
                    "convert %s DIR makes one of a state", path, state);
    if (cached)
        return fail("model: %s is an entry of the hub's cache; its model is %s", path,
                    cached);
    if (folder_exists(path))
        return fail("model: %s has no config.json; expected a model folder", path);
    if (file_exists(path))
        return fail("model: %s is a file; expected the folder it is in", path);
    const char *hub = hub_address(a, path);
    if (hub || hub_name(path))
        return fail("model: %s %s the Hugging Face hub: nothing is downloaded here; "
                    "get it with `hf download %s --local-dir DIR` and give DIR%s", path,
                    hub ? "is an address on" : "looks like a name on", hub ? hub : path,
                    hub ? "" : " (there is no such folder)");
    return fail("model: '%s': no such folder, seen from %s", path,
                getcwd(here, sizeof here) ? here : "?");
}

/* ---- files ---- */

/* What a program reads of a folder, by its name. */
static bool is_read(const char *name)
{
    return text_ends(name, ".json") || text_ends(name, ".safetensors") ||
           text_ends(name, ".jinja");
}

/* A pointer that Git LFS left in place of a file. */
static bool pointer_check(struct arena *a, const char *folder, const char *path)
{
    struct bytes text;
    int64_t size = file_size(path);
    if (size < 0 || size > LFS_MOST)
        return true;
    if (!file_read(a, path, LFS_MOST, &text))
        return false;
    return !text_starts(text.at, "version https://git-lfs") ||
           fail("checkpoint: %s is a Git LFS pointer, not the file itself; run `git "
                "lfs pull` in %s", path, folder);
}

bool hf_file_look(struct arena *a, const char *folder, const char *name)
{
    char *path = path_join(a, folder, name), *target = link_of(a, path);
    struct file f;
    if (folder_exists(path) && !is_read(name))
        return true;
    if (target && access(path, F_OK) != 0)
        return fail("checkpoint: %s is a link to %s, which is not there; remove the "
                    "link or bring back the file", path, target);
    if (!target && !strcmp(name, config_name) && access(path, F_OK) != 0)
        return absent(a, folder);
    if (!file_open(path, false, &f))
        return false;
    file_close(&f);
    return !is_read(name) || pointer_check(a, folder, path);
}

static void left_tell(struct arena *a, const char *folder, char **name, int64_t count)
{
    struct text left = text_make(a);
    for (int64_t i = 0; i < count; i++)
        if (!is_weights(name[i]) && strcmp(name[i], config_name) &&
            hf_leaves(a, folder, name[i]))
            text_add(&left, "%s%s", left.size ? ", " : "", name[i]);
    if (left.size)
        log_warn("checkpoint", "%s: links out of the folder are not followed into an "
                 "export, which will lack %s; copy the files to have them", folder,
                 left.at);
}

static void notes_tell(struct arena *a, const char *notes)
{
    char **line;
    int n = text_split(a, notes, "\n", &line);
    for (int i = 0; i < n; i++)
        log_warn("config", "%s", line[i]);
}

static bool look(struct arena *a, const char *folder, bool exports)
{
    char **name;
    int64_t count;
    struct text notes = text_make(a);
    if (!folder_exists(folder))
        return hf_config_notes(a, folder, &notes);      /* says what was meant */
    if (!folder_list(a, folder, &name, &count))
        return false;
    for (int64_t i = 0; i < count; i++)
        if ((exports || is_read(name[i])) && !hf_file_look(a, folder, name[i]))
            return false;
    if (!hf_config_notes(a, folder, &notes))
        return false;
    notes_tell(a, notes.at);
    if (exports)
        left_tell(a, folder, name, count);
    return true;
}

bool hf_look(const char *folder, bool exports)
{
    struct arena a = arena_make("look");
    bool ok = look(&a, folder, exports) || fail_kind(FAULT_CHECKPOINT);
    arena_free(&a);
    return ok;
}
