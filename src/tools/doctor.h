/* doctor.h - texts about the program and its surroundings. */
#ifndef TOOLS_DOCTOR_H
#define TOOLS_DOCTOR_H

#include "base/text.h"

void report_devices(struct text *t);    /* what can compute here, and its memory */
void report_libraries(struct text *t);  /* one line each: name, version */
void report_limits(struct text *t);     /* open files, memory lock, shared memory */

#endif
