/* file.h - whole files, folders, and replacement that survives a crash. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/arena.h"

struct bytes { char *at; int64_t size; };       /* at[size] is 0 when from file_read */

/* The one way to a descriptor (-1 on failure): open(2) with these flags of what is a
 * regular file.  A named pipe, device, folder or socket is refused at once, not waited
 * for.  All below open files so. */
MUST_USE bool file_descriptor(const char *path, int flags, int *fd);

/* The whole file; fails above `limit` bytes.  Lives as long as the arena's push. */
MUST_USE bool file_read(struct arena *a, const char *path, int64_t limit,
                        struct bytes *out);
/* Read-only mapping until file_unmap; an empty file maps to {"", 0}. */
MUST_USE bool file_map(const char *path, struct bytes *out);
void file_unmap(struct bytes *b);
/* Where to write what will be `path`: beside it, this thread's own.  NULL, with the
 * message, where something else than a file is in that place. */
char *file_aside(struct arena *a, const char *path);
/* What was written aside and synced takes its place, if all went well (`ok`), else it
 * goes.  The old file is there or the new, no mix. */
MUST_USE bool file_settle(const char *aside, const char *path, bool ok);
/* All of that for data in memory. */
MUST_USE bool file_replace(const char *path, const void *data, int64_t size);
/* Removes what a process that was killed before file_settle() left in this folder;
 * where no other process may be in it now. */
MUST_USE bool folder_sweep(const char *path);
/* An open file, read or written at places: all that was asked for, or a message with
 * its path, which must outlive it. */
struct file { int fd; const char *path; };
MUST_USE bool file_make(const char *path, int64_t size, struct file *out);  /* zeros */
MUST_USE bool file_open(const char *path, bool writes, struct file *out);
MUST_USE bool file_write_at(const struct file *f, const void *from, int64_t size,
                            int64_t at);
MUST_USE bool file_read_at(const struct file *f, void *to, int64_t size, int64_t at);
/* Where all went well so far fsync, and close in any case; returns whether it did. */
MUST_USE bool file_sync(struct file *f, bool ok);
void file_close(struct file *f);
/* Hold `path`, made here if need be, until file_unlock or the end of this process,
 * however it ends.  Fails (refused) naming the process that holds it. */
MUST_USE bool file_lock(const char *path, int *lock);
void file_unlock(int lock);
MUST_USE bool file_copy(const char *from, const char *to);      /* bytes and fsync */
MUST_USE bool folder_make(const char *path);                    /* like mkdir -p */
MUST_USE bool folder_sync(const char *path);                    /* fsync the folder */
MUST_USE bool folder_remove(const char *path);                  /* like rm -rf */
/* Removes what a failure left half made; the failure's message stays. */
void folder_abandon(const char *path);
/* `part`, written and synced, takes the place of `path` in one move; a folder that was
 * there is removed afterwards.  (A file system that cannot exchange two names moves the
 * old one aside first: a crash in between leaves both beside `path`.) */
MUST_USE bool folder_replace(const char *part, const char *path);
/* Is nothing there, or an empty folder?  Else it fails: results replace nothing. */
MUST_USE bool folder_unused(const char *path);
/* Names in a folder, sorted bytewise, without "." and "..". */
MUST_USE bool folder_list(struct arena *a, const char *path, char ***names,
                          int64_t *count);
bool file_exists(const char *path);
bool folder_exists(const char *path);
int64_t file_size(const char *path);                            /* -1: no such file */
/* Was it (a file or folder) changed before `other` was?  Yes where it is not there. */
bool file_older(const char *path, const char *other);
/* "folder/name"; a name that starts with '/' stands alone. */
char *path_join(struct arena *a, const char *folder, const char *name);

#endif
