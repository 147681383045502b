/* foreign.c - files that people have and no reader takes, known by how they
 * begin or what they are called, so that the message says what to do with them. */
#include "data/source/parts.h"

#include "base/text.h"

#define PANDAS(read) "write it as JSON lines, e.g. with pandas: " read \
                     "(x).to_json(y, orient='records', lines=True)"
#define UNPACK "unpack it first"

static const struct foreign {
    const char *begins;                 /* bytes; "": told by its name alone */
    int size;
    const char *ends, *also;            /* of its name */
    const char *what, *hint;
} foreign[] = {
    {"PAR1", 4, ".parquet", ".pq", "Parquet", PANDAS("read_parquet")},
    {"ARROW1", 6, ".arrow", ".feather", "Arrow", PANDAS("read_feather")},
    {"", 0, ".csv", ".tsv", "a table of text", PANDAS("read_csv")},
    {"\x1f\x8b", 2, ".gz", ".tgz", "compressed (gzip)", UNPACK},
    {"\x28\xb5\x2f\xfd", 4, ".zst", ".tzst", "compressed (zstd)", UNPACK},
    {"\xfd" "7zXZ", 5, ".xz", ".txz", "compressed (xz)", UNPACK},
    {"BZh", 3, ".bz2", ".tbz2", "compressed (bzip2)", UNPACK},
    {"PK\3\4", 4, ".zip", ".npz", "a ZIP archive", UNPACK},
    {"7z\xbc\xaf", 4, ".7z", ".7z", "a 7-Zip archive", UNPACK},
    {"SQLite format 3", 15, ".sqlite", ".db", "a SQLite database",
     PANDAS("read_sql_table")},
    {"\x89HDF", 4, ".h5", ".hdf5", "HDF5", "write it as JSON lines or tar shards"},
    {"\x93NUMPY", 6, ".npy", ".npy", "a NumPy array",
     "write it as JSON lines or tar shards"},
    {"", 0, ".pkl", ".pickle", "a Python pickle",
     "write it as JSON lines or tar shards"},
    {"", 0, ".tfrecord", ".lance", "records of another library",
     "write it as JSON lines or tar shards"},
};

static const struct foreign *foreign_find(const char *path)
{
    struct arena a = arena_make("head");
    struct file f;
    int64_t size = file_size(path);
    char *head = NEW(&a, char, 16);
    bool read = file_open(path, false, &f);
    if (read && !file_read_at(&f, head, MIN(size, 16), 0))
        memset(head, 0, 16);
    if (read)
        file_close(&f);
    const struct foreign *found = NULL;
    for (int i = 0; i < COUNT(foreign) && !found; i++)
        if (foreign[i].size ? !memcmp(head, foreign[i].begins, (size_t)foreign[i].size)
                            : text_ends(path, foreign[i].ends) ||
                                  text_ends(path, foreign[i].also))
            found = &foreign[i];
    arena_free(&a);
    return found;
}

bool foreign_check(const char *path)
{
    if (!file_exists(path) || folder_exists(path))
        return true;
    const struct foreign *is = foreign_find(path);
    return !is || fail("%s: is %s, which is not read; %s (readable: " READABLE ")",
                       path, is->what, is->hint);
}

const char *foreign_named(const char *name)
{
    for (int i = 0; i < COUNT(foreign); i++)
        if (text_ends(name, foreign[i].ends) || text_ends(name, foreign[i].also))
            return foreign[i].what;
    return NULL;
}
