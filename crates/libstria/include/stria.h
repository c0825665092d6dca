/* libstria: reads and writes of files of a Stria mount past the kernel. docs/reference/native.md
 *
 * Failures are -1 or NULL, with errno as the kernel's calls have it; besides: ENOTCONN, the mount's daemon is gone (open
 * again when it is back), EAGAIN, 32 requests are begun and not waited for, or 2 MiB of them.
 * On files of other file systems the same calls go through the kernel. All functions may be called by any thread. */
#ifndef STRIA_H
#define STRIA_H

#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open file. */
typedef struct stria_file stria_file;
/* A request that was begun. */
typedef struct stria_request stria_request;

/* open(2) with O_CLOEXEC; `mode` is for files that it creates. */
stria_file *stria_open(const char *path, int flags, unsigned int mode);
/* close(2); nobody uses the file any more, also where this is -1: then errno says what was not written out. Requests that are
 * begun go on, and may still be waited for. */
int stria_close(stria_file *file);
/* The kernel's descriptor, for what has no function here (fstat, ftruncate, locks, fcntl); close it with stria_close. */
int stria_fileno(const stria_file *file);
/* 1: its bytes go past the kernel. */
int stria_is_native(const stria_file *file);

/* pread(2) and pwrite(2) of any length, in pieces of 1 MiB. */
ssize_t stria_pread(const stria_file *file, void *into, size_t len, off_t at);
ssize_t stria_pwrite(const stria_file *file, const void *from, size_t len, off_t at);
/* preadv(2) and pwritev(2) of at most 1024 parts and any length, in pieces of 1 MiB. */
ssize_t stria_preadv(const stria_file *file, const struct iovec *into, int n, off_t at);
ssize_t stria_pwritev(const stria_file *file, const struct iovec *from, int n, off_t at);
int stria_fsync(const stria_file *file);
int stria_fdatasync(const stria_file *file);

/* Begin a read or write of at most 1 MiB; what is written is copied before the call returns. */
stria_request *stria_begin_pread(const stria_file *file, size_t len, off_t at);
stria_request *stria_begin_pwrite(const stria_file *file, const void *from, size_t len, off_t at);
/* 1: stria_wait does not wait. */
int stria_is_done(const stria_request *request);
/* The result; bytes that were read go to `into`, `len` of them at most, whatever the result. The request is gone then. Every request is waited for once. */
ssize_t stria_wait(stria_request *request, void *into, size_t len);

/* Requests under way together, of files of one mount; one thread at a time uses a queue. */
typedef struct stria_queue stria_queue;
/* What became of one: what was given along with it, and bytes, or an errno, negative. */
struct stria_done { void *user; ssize_t result; };
stria_queue *stria_queue_new(void);
/* Requests that are not taken go on, and their answers are thrown away. */
void stria_queue_free(stria_queue *queue);
/* Begin as above. `into` is filled when the answer is taken. EXDEV: a file of another mount than those under way; nothing is begun. */
int stria_queue_pread(stria_queue *queue, const stria_file *file, void *into, size_t len, off_t at, void *user);
int stria_queue_pwrite(stria_queue *queue, const stria_file *file, const void *from, size_t len, off_t at, void *user);
/* Takes what is done, at most `max`; waits until there are `min`, or all that are under way. How many. */
int stria_queue_reap(stria_queue *queue, struct stria_done *done, unsigned min, unsigned max);

#ifdef __cplusplus
}
#endif
#endif
