/* fail.c - the kept message of each thread, and the end of a broken promise. */
#include "base/base.h"
#include "base/text.h"

#include <errno.h>
#include <execinfo.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

static _Thread_local struct failure kept;

bool fail(const char *fmt, ...)
{
    char text[sizeof kept.message];
    va_list args;
    va_start(args, fmt);
    text_format(text, sizeof text, fmt, args);    /* may quote the old message */
    va_end(args);
    memcpy(kept.message, text, sizeof text);
    kept.fault = FAULT_NONE;
    kept.error = 0;
    return false;
}

bool fail_in(const char *fmt, ...)
{
    char text[sizeof kept.message];
    va_list args;
    va_start(args, fmt);
    int n = text_format(text, sizeof text, fmt, args);
    va_end(args);
    if (n >= 0 && n < (int)sizeof text - 2) {
        int room = (int)sizeof text - n - 3;    /* ": " and the NUL */
        snprintf(text + n, sizeof text - (size_t)n, ": %.*s", room, kept.message);
    }
    memcpy(kept.message, text, sizeof text);
    return false;
}

bool fail_more(const char *more)
{
    size_t n = strlen(kept.message);
    snprintf(kept.message + n, sizeof kept.message - n, "; %s", more);
    return false;
}

bool fail_kind(enum fault kind)
{
    if (kept.fault == FAULT_NONE)
        kept.fault = kind;
    return false;
}

bool fail_machine(int error)
{
    static const int name[] = {ENOENT, ENOTDIR, EACCES, EPERM, ELOOP, ENAMETOOLONG,
                               EISDIR, EINVAL, ENXIO, EILSEQ};
    kept.error = error;
    for (int i = 0; i < COUNT(name); i++)
        if (error == name[i])
            kept.error = 0;
    return false;
}

int fail_machine_error(void)
{
    return kept.error;
}

const char *fail_message(void)
{
    return kept.message;
}

enum fault fail_fault(void)
{
    return kept.fault;
}

void fail_clear(void)
{
    kept = (struct failure){0};
}

void fail_take(struct failure *to)
{
    *to = kept;
}

bool fail_raise(const struct failure *from)
{
    kept = *from;
    return false;
}

void bug_at(const char *file, int line, const char *fmt, ...)
{
    void *frame[32];
    va_list args;
    va_start(args, fmt);
    char text[1024];
    text_format(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "bug: %s:%d: ", file, line);
    text_show(stderr, text, false);
    fputc('\n', stderr);
    backtrace_symbols_fd(frame, backtrace(frame, COUNT(frame)), STDERR_FILENO);
    _Exit(FAULT_BUG);
}
