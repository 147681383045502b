/* stop.c - the signal handler, and what it leaves for others to see. */
#include "base/stop.h"

#include "base/log.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t gently, asked;
static volatile time_t asked_at;        /* before `asked` is set, then never again */

static void say(const char *text)       /* as a handler may */
{
    ssize_t n = log_terminal() ? write(STDERR_FILENO, "\n", 1) : 0;
    n += write(STDERR_FILENO, text, strlen(text));
    (void)n;                            /* nobody may be there to read it */
}

static void handle(int number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!gently) {
        say("vlmoe: stopped by a signal before a step was done; there is nothing to "
            "save, run it again to go on\n");
        _Exit(EXIT_SUCCESS);
    }
    if (!asked) {
        asked_at = now.tv_sec;
        asked = 1;
        say("vlmoe: a signal asks to stop: the step in hand is finished and its state "
            "saved (Ctrl-C again ends at once)\n");
    } else if (number == SIGINT && now.tv_sec > asked_at + 1) {
        say("vlmoe: ended at once by a second Ctrl-C; run it again to go on from the "
            "newest state\n");
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
}

void stop_listen(void)
{
    const int number[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction act = {.sa_handler = handle, .sa_flags = SA_RESTART}, old;
    for (int i = 0; i < COUNT(number); i++)
        if (number[i] != SIGHUP || (sigaction(SIGHUP, NULL, &old) == 0 &&
                                    old.sa_handler != SIG_IGN))     /* nohup */
            sigaction(number[i], &act, NULL);
}

void stop_gently(void)
{
    gently = 1;
}

bool stop_asked(void)
{
    return asked;
}
