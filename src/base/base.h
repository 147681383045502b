/* base.h - what every file may rely on: sizes, failure, broken promises.
 *
 * fail() is for the world's fault: a bad recipe, a missing file, a full disk.  It
 * keeps a message for this thread and returns false, so a caller writes
 *     if (!f)
 *         return fail("file: open %s: %s", path, strerror(errno));
 * A message reads "what: what happened, with the values, what was expected".
 * BUG() is for our own fault, a promise broken between two functions; it never
 * returns and stays on in release builds.  Only src/cli prints messages. */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* MIN(a, b), MAX(a, b): of numbers of any type, each argument evaluated once, so that
 * it may be a call that changes something.  MAX(x, NaN) is NaN, MAX(NaN, x) is x. */
#define LESSER_AND_GREATER(name, type)                                                 \
    static inline type name##_least(type a, type b) { return a < b ? a : b; }          \
    static inline type name##_most(type a, type b) { return a > b ? a : b; }
LESSER_AND_GREATER(int, int)
LESSER_AND_GREATER(unsigned, unsigned)
LESSER_AND_GREATER(long, long)
LESSER_AND_GREATER(ulong, unsigned long)
LESSER_AND_GREATER(float, float)
LESSER_AND_GREATER(double, double)
#undef LESSER_AND_GREATER
#define OF_TYPE(x, which)                                                              \
    _Generic((x), int: int_##which, unsigned: unsigned_##which, long: long_##which,    \
             unsigned long: ulong_##which, float: float_##which,                       \
             double: double_##which)
#define MIN(a, b) OF_TYPE((a) + (b), least)(a, b)
#define MAX(a, b) OF_TYPE((a) + (b), most)(a, b)

/* Whose fault, and the exit code of the command that could not go on. */
enum fault {
    FAULT_NONE = 0,
    FAULT_USAGE = 2,            /* command line or recipe */
    FAULT_DATA = 3,             /* images, text, tokenizer, shards */
    FAULT_CHECKPOINT = 4,
    FAULT_NOT_FINITE = 5,
    FAULT_MEMORY = 6,           /* does not fit */
    FAULT_RANK = 7,             /* a rank was lost or hangs */
    FAULT_REFUSED = 8,          /* contract or verification */
    FAULT_BUG = 70,
};

/* Keep the message, return false. */
bool fail(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* Put context in front of the kept message ("context: message"), return false. */
bool fail_in(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* Add to the kept message ("message; more"), return false. */
bool fail_more(const char *more);
/* Say whose fault it is, unless that is known already; return false.  A subsystem's
 * entry points end in `return ok || fail_kind(FAULT_DATA);`. */
bool fail_kind(enum fault kind);
/* The kept message ("" if none) and fault; valid until this thread's next fail(). */
const char *fail_message(void);
enum fault fail_fault(void);
void fail_clear(void);
/* Say which errno is behind the kept message; return false.  The machine's (it has no
 * descriptors left, a disk's error) stays until the next fail(): what was asked for is
 * not at fault, and nothing else would fare better.  That of a name which leads to
 * nothing, or to what may not be read, is none of the machine's. */
bool fail_machine(int error);
int fail_machine_error(void);                           /* 0: none of the machine's */
/* Carry a failure from one thread to another: take it there, raise it here. */
struct failure { enum fault fault; int error; char message[1024]; };
void fail_take(struct failure *to);
bool fail_raise(const struct failure *from);            /* returns false */

_Noreturn void bug_at(const char *file, int line, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
#define BUG(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
#define REQUIRE(cond) ((cond) ? (void)0 : BUG("%s", #cond))

#endif
