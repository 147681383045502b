/* log.c - the one place outside src/cli that prints: whole lines, one at a time. */
#include "base/log.h"

#include <stdarg.h>
#include <unistd.h>

static struct {                     /* set at start-up; `progress` by stderr's lock */
    enum log_level least;
    int rank;
    bool progress;                  /* an unfinished progress line is on the screen */
} state = {LOG_INFO, 0, false};

void log_set(enum log_level least, int rank)
{
    state.least = least;
    state.rank = rank;
}

bool log_terminal(void)
{
    return isatty(STDERR_FILENO) == 1;
}

static void progress_wipe(void)
{
    if (state.progress)
        fputs("\r\033[K", stderr);
    state.progress = false;
}

void log_line(enum log_level level, const char *subject, const char *fmt, ...)
{
    if (level < state.least || (state.rank != 0 && level < LOG_WARN))
        return;
    va_list args;
    va_start(args, fmt);
    flockfile(stderr);
    progress_wipe();
    if (state.rank != 0)
        fprintf(stderr, "[rank %d] ", state.rank);
    fprintf(stderr, "%s%s: ", level == LOG_WARN ? "warning: " : "", subject);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    funlockfile(stderr);
    va_end(args);
}

void log_progress(const char *fmt, ...)
{
    if (state.rank != 0 || state.least > LOG_INFO || !log_terminal())
        return;
    va_list args;
    va_start(args, fmt);
    flockfile(stderr);
    progress_wipe();
    vfprintf(stderr, fmt, args);
    fflush(stderr);
    state.progress = true;
    funlockfile(stderr);
    va_end(args);
}
