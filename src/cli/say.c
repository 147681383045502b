/* say.c - what a command answers, on standard output; and why it could not.
 *
 * Stands alone because all of it passes here: names and texts of files are not to be
 * trusted with a terminal. */
#include "cli/cli.h"

#include "base/log.h"
#include "base/text.h"

#include <stdarg.h>

void say(const char *fmt, ...)
{
    struct arena a = arena_make("answer");
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = text_format(NULL, 0, fmt, args);
    REQUIRE(n >= 0);
    char *text = arena_push(&a, (size_t)n + 1);
    text_format(text, (size_t)n + 1, fmt, again);
    text_show(stdout, text, true);
    va_end(again);
    va_end(args);
    arena_free(&a);
}

void say_failure(void)
{
    const char *why = fail_message();
    fflush(stdout);                     /* what was printed first stands first */
    log_progress("%s", "");
    fputs(text_starts(why, "vlmoe: ") ? "" : "vlmoe: ", stderr);
    text_show(stderr, why, false);
    fputc('\n', stderr);
}
