/* queue.h - a bounded queue of pointers between threads, and the workers around it.
 * The only mutexes of the host side.  Passing an item passes its ownership. */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include "base/base.h"

struct queue;
struct queue *queue_make(int room);
void queue_free(struct queue *q);
bool queue_push(struct queue *q, void *item);   /* waits for room; false once closed */
/* Waits for an item; NULL once closed and empty. */
void *queue_pop(struct queue *q);
void queue_close(struct queue *q);              /* wakes everyone */

/* n threads that run main(arg, index); joined by workers_join.  A system that starts no
 * more threads ends the program (code 6), like memory that runs out. */
struct workers;
struct workers *workers_start(int n, void (*main)(void *arg, int index), void *arg);
void workers_join(struct workers *w);           /* waits, frees */

#endif
