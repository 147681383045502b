/* log.c - the one place outside src/cli that prints: whole lines, one at a time. */
#include "base/log.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

static struct {                     /* set at start-up; `progress` by stderr's lock */
    enum log_level least;
    int rank;
    bool progress;                  /* an unfinished progress line is on the screen */
} state = {LOG_INFO, 0, false};
static _Thread_local int other_rank = -1;       /* where ranks are threads */

static int rank_now(void)
{
    return other_rank < 0 ? state.rank : other_rank;
}

void log_set(enum log_level least, int rank)
{
    state.least = least;
    state.rank = rank;
}

int log_rank(int rank)
{
    int before = other_rank;
    other_rank = rank;
    return before;
}

bool log_terminal(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) == 1 && term && *term && strcmp(term, "dumb");
}

/* A line that is longer than the terminal is wide would not replace itself. */
static void fit(char *text)
{
    struct winsize w;
    size_t wide = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
    if (strlen(text) < wide)
        return;
    while (--wide > 0 && (text[wide] & 0xc0) == 0x80)
        ;                               /* not within a character */
    text[wide] = '\0';
}

static void progress_wipe(void)
{
    if (state.progress)
        fputs("\r\033[K", stderr);
    state.progress = false;
}

/* A text of bounded length, so that nothing is allocated: memory may have run out. */
static void show(const char *fmt, va_list args)
{
    char text[4096];
    int n = text_format(text, sizeof text, fmt, args);
    text_show(stderr, text, false);
    if (n >= (int)sizeof text)
        fputs("...", stderr);
}

/* Does the text begin with "SUBJECT:" already? */
static bool begins_with(const char *subject, const char *fmt, va_list args)
{
    char start[32];
    va_list copy;
    va_copy(copy, args);
    text_format(start, sizeof start, fmt, copy);
    va_end(copy);
    size_t n = strlen(subject);
    return !strncmp(start, subject, n) && start[n] == ':';
}

void log_line(enum log_level level, const char *subject, const char *fmt, ...)
{
    int rank = rank_now();
    if (level < state.least || (rank != 0 && level < LOG_WARN))
        return;
    va_list args;
    va_start(args, fmt);
    flockfile(stderr);
    progress_wipe();
    if (rank != 0)
        fprintf(stderr, "[rank %d] ", rank);
    if (level == LOG_WARN)
        fputs("warning: ", stderr);
    if (!begins_with(subject, fmt, args))       /* a failure's message may */
        fprintf(stderr, "%s: ", subject);
    show(fmt, args);
    fputc('\n', stderr);
    funlockfile(stderr);
    va_end(args);
}

void log_progress(const char *fmt, ...)
{
    if (rank_now() != 0 || state.least > LOG_PROGRESS || !log_terminal())
        return;
    va_list args;
    va_start(args, fmt);
    flockfile(stderr);
    char text[1024];
    progress_wipe();
    text_format(text, sizeof text, fmt, args);
    fit(text);
    text_show(stderr, text, false);
    fflush(stderr);
    state.progress = true;
    funlockfile(stderr);
    va_end(args);
}
