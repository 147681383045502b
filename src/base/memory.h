/* memory.h - when memory runs out, the program ends: exit code 6 and one message.
 *
 * Nobody asks whether an allocation failed, so nobody can forget to: memory.c stands
 * in front of the system's allocator for the whole process, libraries and libc too. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include "base/base.h"

/* Whose memory this thread asks for, for that message; NULL: a library's. */
extern _Thread_local const char *volatile memory_user;
/* Ends the program so; where the system itself says that it has no memory (ENOMEM). */
_Noreturn void memory_out(size_t bytes);
/* Zeros straight from the system; NULL where it has no more: for what is so large that
 * a caller can say what to make smaller. */
void *memory_map(size_t bytes);

#endif
