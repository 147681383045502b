/* log.h - what the program tells people while it works: one line at a time, stderr.
 * The subject comes first ("data", "checkpoint"); rank 0 speaks, others are silent
 * unless they warn.  Nothing logs inside the run loop. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/base.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_PROGRESS, LOG_WARN };
void log_set(enum log_level least, int rank);
/* This thread, and the workers it starts, speak as another rank of the same process;
 * returns who they spoke as before (-1: the rank of log_set). */
int log_rank(int rank);
void log_line(enum log_level level, const char *subject, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
#define log_debug(subject, ...) log_line(LOG_DEBUG, subject, __VA_ARGS__)
#define log_info(subject, ...) log_line(LOG_INFO, subject, __VA_ARGS__)
#define log_warn(subject, ...) log_line(LOG_WARN, subject, __VA_ARGS__)

/* A line that replaces itself on a terminal, cut to its width; nothing elsewhere. */
void log_progress(const char *fmt, ...) PRINTF_LIKE(1, 2);
bool log_terminal(void);                /* one that can: TERM dumb, or none, cannot */

#endif
