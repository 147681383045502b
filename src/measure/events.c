/* events.c - frames and protobuf fields of TensorBoard event files. */
#include "measure/events.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <time.h>
#include <unistd.h>

struct events {
    FILE *file;
    const char *path;
};

uint32_t crc32c(const void *data, int64_t size)
{
    const uint8_t *at = data;
    uint32_t crc = ~0u;
    for (int64_t i = 0; i < size; i++) {
        crc ^= at[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0x82f63b78u & -(crc & 1));
    }
    return ~crc;
}

/* ---- protobuf: a tag (field number << 3 | wire type), then the value ---- */

static void varint(struct text *t, uint64_t x)
{
    for (; x > 127; x >>= 7)
        text_add_bytes(t, &(char){(char)(x | 128)}, 1);
    text_add_bytes(t, &(char){(char)x}, 1);
}

static void field_varint(struct text *t, int field, uint64_t x)
{
    varint(t, (uint64_t)field << 3);
    varint(t, x);
}

static void field_bytes(struct text *t, int field, const void *data, int64_t size)
{
    varint(t, (uint64_t)field << 3 | 2);
    varint(t, (uint64_t)size);
    text_add_bytes(t, data, size);
}

static void field_message(struct text *t, int field, const struct text *message)
{
    field_bytes(t, field, message->at, message->size);
}

static void field_double(struct text *t, int field, double x)
{
    varint(t, (uint64_t)field << 3 | 1);
    text_add_bytes(t, &x, sizeof x);
}

static void field_float(struct text *t, int field, float x)
{
    varint(t, (uint64_t)field << 3 | 5);
    text_add_bytes(t, &x, sizeof x);
}

/* ---- frames ---- */

static uint32_t masked(const void *data, int64_t size)
{
    uint32_t crc = crc32c(data, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static bool frame_write(struct events *e, const struct text *t)
{
    uint64_t size = (uint64_t)t->size;
    uint32_t head = masked(&size, sizeof size), tail = masked(t->at, t->size);
    if (fwrite(&size, sizeof size, 1, e->file) == 1 &&
        fwrite(&head, sizeof head, 1, e->file) == 1 &&
        fwrite(t->at, 1, size, e->file) == size &&
        fwrite(&tail, sizeof tail, 1, e->file) == 1)
        return true;
    return fail("report: write %s: %s", e->path, strerror(errno));
}

static double wall_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Event: wall_time 1, step 2, and what it holds: file_version 3, summary 5 { value 1 }
 * or session_log 7. */
static bool event_write(struct events *e, struct arena *a, int64_t step, int field,
                        const struct text *content)
{
    struct text event = text_make(a);
    field_double(&event, 1, wall_seconds());
    field_varint(&event, 2, (uint64_t)step);
    field_message(&event, field, content);
    return frame_write(e, &event);
}

static bool value_write(struct events *e, struct arena *a, int64_t step,
                        const struct text *value)
{
    struct text summary = text_make(a);
    field_message(&summary, 1, value);
    return event_write(e, a, step, 5, &summary);
}

/* SessionLog: status 1 = START (1), which voids its own and later steps of before. */
static bool begin(struct events *e, int64_t step)
{
    struct arena a = arena_make("event");
    struct text version = text_make(&a), log = text_make(&a);
    text_add(&version, "brain.Event:2");
    field_varint(&log, 1, 1);
    bool ok = event_write(e, &a, 0, 3, &version) &&
              event_write(e, &a, step + 1, 7, &log) && events_flush(e);
    arena_free(&a);
    return ok;
}

bool events_open(struct arena *a, const char *folder, int64_t step, struct events **out)
{
    struct events *e = NEW(a, struct events, 1);
    if (!folder_make(folder))
        return false;
    e->path = arena_text(a, "%s/events.out.tfevents.%.0f.%d", folder,
                         1e3 * wall_seconds(), (int)getpid());
    int fd;                             /* O_EXCL: never over another */
    if (!file_descriptor(e->path, O_WRONLY | O_CREAT | O_EXCL, &fd))
        return false;
    e->file = fdopen(fd, "wb");
    if (!e->file)
        return fail("report: create %s: %s", e->path, strerror(errno));
    *out = e;
    if (begin(e, step))
        return true;
    events_close(e);
    return false;
}

/* Summary.Value: tag 1, simple_value 2. */
bool events_scalar(struct events *e, int64_t step, const char *tag, double value)
{
    struct arena a = arena_make("event");
    struct text v = text_make(&a);
    field_bytes(&v, 1, tag, (int64_t)strlen(tag));
    field_float(&v, 2, (float)value);
    bool ok = value_write(e, &a, step, &v);
    arena_free(&a);
    return ok;
}

/* Summary.Value: tag 1, tensor 8 { dtype 1 = string (7), shape 2 {dim 2 {size 1}},
 * string_val 8 }, metadata 9 { plugin_data 1 { plugin_name 1 } }. */
bool events_text(struct events *e, int64_t step, const char *tag, const char *text)
{
    struct arena a = arena_make("event");
    struct text v = text_make(&a), tensor = text_make(&a), shape = text_make(&a);
    struct text dim = text_make(&a), plugin = text_make(&a), metadata = text_make(&a);
    field_varint(&dim, 1, 1);
    field_message(&shape, 2, &dim);
    field_varint(&tensor, 1, 7);
    field_message(&tensor, 2, &shape);
    field_bytes(&tensor, 8, text, (int64_t)strlen(text));
    field_bytes(&plugin, 1, "text", 4);
    field_message(&metadata, 1, &plugin);
    field_bytes(&v, 1, tag, (int64_t)strlen(tag));
    field_message(&v, 8, &tensor);
    field_message(&v, 9, &metadata);
    bool ok = value_write(e, &a, step, &v);
    arena_free(&a);
    return ok;
}

bool events_flush(struct events *e)
{
    return fflush(e->file) == 0 ||
           fail("report: write %s: %s", e->path, strerror(errno));
}

void events_close(struct events *e)
{
    if (e->file)
        fclose(e->file);
    e->file = NULL;
}
