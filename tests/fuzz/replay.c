/* replay.c - runs a fuzz target over the files of a corpus, without libFuzzer. */
#include "base/file.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    struct arena a = arena_make("replay");
    char **name;
    int64_t count;
    if (argc != 2 || !folder_list(&a, argv[1], &name, &count)) {
        fprintf(stderr, "usage: replay FOLDER: %s\n", fail_message());
        return EXIT_FAILURE;
    }
    for (int64_t i = 0; i < count; i++) {
        struct arena item = arena_make("file");
        struct bytes file;
        if (!file_read(&item, path_join(&a, argv[1], name[i]), 1 << 26, &file)) {
            fprintf(stderr, "%s\n", fail_message());
            return EXIT_FAILURE;
        }
        LLVMFuzzerTestOneInput((const uint8_t *)file.at, (size_t)file.size);
        arena_free(&item);
    }
    printf("%lld inputs replayed\n", (long long)count);
    arena_free(&a);
    return count > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
