/* Preload recorder of a process's file writes: one fixed-size event per call, in a mapped file.
 *
 * The kernel owns the mapped pages, so what was recorded survives SIGKILL without any flush.
 * Only files below the prefixes in HPCCKPT_IOTRACE_PATHS are recorded. Reads are not.
 * When the event file cannot be made (no directory, no space) the process runs on untraced.
 *
 * Not seen, because no wrapped function is called: raw syscall(2), io_uring, splice, stores to
 * mapped memory (the mapping itself is an event), and what libc does inside itself. The last one
 * is wanted: fwrite is counted as it enters the FILE, not again when its buffer is flushed.
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* the wrapped functions must not turn into their checked variants here */
#undef _FILE_OFFSET_BITS
#include <dirent.h>
#include <stdarg.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include "iotrace_file.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- one call ---- */

struct call {
    enum op op;
    uint32_t file, other;
    int64_t start_ns, offset;
};

/* The one place that every real I/O call passes first: emulated storage goes here (issue a token,
 * wait), and its waiting counts as the call's own time. `length` is what the caller asks for. */
static inline void before_call(enum op op, uint32_t file, int64_t length)
{
    (void)op, (void)file, (void)length;
}

static struct call begin(enum op op, uint32_t file, int64_t length)
{
    struct call c = {.op = op, .file = file, .offset = -1};
    if (!file) return c;
    c.start_ns = clock_ns(CLOCK_MONOTONIC); /* not 0: this call is recorded */
    before_call(op, file, length);
    return c;
}

static void record(const struct call *c, int64_t length, int error, int64_t end_ns)
{
    if (start_later) {
        pthread_mutex_lock(&lock);
        if (start_later) start_child_trace();
        pthread_mutex_unlock(&lock);
    }
    if (!trace) return;
    uint64_t at = atomic_fetch_add(&trace->reserved, 1);
    if (at >= trace->capacity) return;
    if (!thread_id) thread_id = (uint32_t)syscall(SYS_gettid);
    struct event *e = &events[at];
    e->error = (uint16_t)error;
    e->thread = thread_id, e->file = c->file, e->other = c->other;
    e->offset = c->offset, e->length = length, e->start_ns = c->start_ns, e->end_ns = end_ns;
    atomic_store_explicit(&e->op, (uint16_t)c->op, memory_order_release);
}

/* Ends a call that returned `result` (negative: failed, errno says why). */
static void end(struct call *c, int64_t result)
{
    if (!c->start_ns) return;
    int saved = errno;
    int64_t now = clock_ns(CLOCK_MONOTONIC);
    record(c, result > 0 ? result : 0, result < 0 ? saved : 0, now);
    errno = saved;
}

/* Ends a write at the descriptor's own position, which afterwards is just behind what was written. */
static void end_at_position(struct call *c, int fd, int64_t result)
{
    if (!c->start_ns) return;
    int saved = errno;
    int64_t now = clock_ns(CLOCK_MONOTONIC), position = lseek(fd, 0, SEEK_CUR);
    if (position >= result && result > 0) c->offset = position - result;
    record(c, result > 0 ? result : 0, result < 0 ? saved : 0, now);
    errno = saved;
}

static void end_stream_write(struct call *c, FILE *stream, int64_t written, int failed)
{
    if (!c->start_ns) return;
    int saved = errno;
    int64_t now = clock_ns(CLOCK_MONOTONIC), position = ftello(stream);
    if (position >= written) c->offset = position - written;
    record(c, written, failed ? saved : 0, now);
    errno = saved;
}

/* Ends an open: the descriptor now stands for the file, and whatever it stood for before is forgotten. */
static int end_open(struct call *c, int fd)
{
    if (fd >= 0) set_file(fd, c->file);
    end(c, fd < 0 ? -1 : 0);
    return fd;
}

static FILE *end_stream_open(struct call *c, FILE *stream)
{
    if (stream) set_file(fileno(stream), c->file);
    end(c, stream ? 0 : -1);
    return stream;
}

static int end_dup(int from, int to)
{
    uint32_t file = file_of(from);
    struct call c = begin(OP_DUP, to >= 0 ? file : 0, 0);
    if (to >= 0) set_file(to, file);
    end(&c, 0);
    return to;
}

static int64_t total(const struct iovec *parts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += (int64_t)parts[i].iov_len;
    return sum;
}

static uint32_t stream_file(FILE *stream) { return trace && stream ? file_of(fileno(stream)) : 0; }

/* ---- the wrapped functions ---- */

#define MODE_ARGUMENT(flags) ({ \
        mode_t mode_ = 0; \
        if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
            va_list rest; \
            va_start(rest, flags); \
            mode_ = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        mode_; })

#define WRAP_OPEN(name) \
    EXPORT int name(const char *path, int flags, ...) \
    { \
        mode_t mode = MODE_ARGUMENT(flags); \
        struct call c = begin(OP_OPEN, watch(AT_FDCWD, path), 0); \
        return end_open(&c, REAL(name)(path, flags, mode)); \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)

#define WRAP_OPENAT(name) \
    EXPORT int name(int dirfd, const char *path, int flags, ...) \
    { \
        mode_t mode = MODE_ARGUMENT(flags); \
        struct call c = begin(OP_OPEN, watch(dirfd, path), 0); \
        return end_open(&c, REAL(name)(dirfd, path, flags, mode)); \
    }
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)

/* What callers compiled with _FORTIFY_SOURCE use for an open without a mode; no header declares them here. */
#define WRAP_FORTIFIED_OPEN(name) \
    EXPORT int name(const char *path, int flags); \
    EXPORT int name(const char *path, int flags) \
    { \
        struct call c = begin(OP_OPEN, watch(AT_FDCWD, path), 0); \
        return end_open(&c, REAL(name)(path, flags)); \
    }
WRAP_FORTIFIED_OPEN(__open_2)
WRAP_FORTIFIED_OPEN(__open64_2)

#define WRAP_FORTIFIED_OPENAT(name) \
    EXPORT int name(int dirfd, const char *path, int flags); \
    EXPORT int name(int dirfd, const char *path, int flags) \
    { \
        struct call c = begin(OP_OPEN, watch(dirfd, path), 0); \
        return end_open(&c, REAL(name)(dirfd, path, flags)); \
    }
WRAP_FORTIFIED_OPENAT(__openat_2)
WRAP_FORTIFIED_OPENAT(__openat64_2)

#define WRAP_CREAT(name) \
    EXPORT int name(const char *path, mode_t mode) \
    { \
        struct call c = begin(OP_OPEN, watch(AT_FDCWD, path), 0); \
        return end_open(&c, REAL(name)(path, mode)); \
    }
WRAP_CREAT(creat)
WRAP_CREAT(creat64)

/* The name is known only afterwards, so the hook comes after these calls. */
static int end_temporary(int64_t start_ns, const char *path, int fd)
{
    struct call c = begin(OP_OPEN, fd >= 0 ? watch(AT_FDCWD, path) : 0, 0);
    if (c.start_ns) c.start_ns = start_ns;
    return end_open(&c, fd);
}

#define WRAP_MKSTEMP(name, parameters, arguments) \
    EXPORT int name parameters \
    { \
        int64_t start_ns = clock_ns(CLOCK_MONOTONIC); \
        return end_temporary(start_ns, path, REAL(name) arguments); \
    }
WRAP_MKSTEMP(mkstemp, (char *path), (path))
WRAP_MKSTEMP(mkstemp64, (char *path), (path))
WRAP_MKSTEMP(mkostemp, (char *path, int flags), (path, flags))
WRAP_MKSTEMP(mkostemp64, (char *path, int flags), (path, flags))
WRAP_MKSTEMP(mkstemps, (char *path, int suffix), (path, suffix))
WRAP_MKSTEMP(mkstemps64, (char *path, int suffix), (path, suffix))

EXPORT int close(int fd)
{
    struct call c = begin(OP_CLOSE, file_of(fd), 0);
    set_file(fd, 0); /* before the call: afterwards another thread may already hold the number */
    int result = REAL(close)(fd);
    end(&c, result);
    return result;
}

EXPORT int closedir(DIR *directory)
{
    set_file(dirfd(directory), 0);
    return REAL(closedir)(directory);
}

EXPORT int dup(int fd) { return end_dup(fd, REAL(dup)(fd)); }
EXPORT int dup2(int fd, int to) { return end_dup(fd, REAL(dup2)(fd, to)); }
EXPORT int dup3(int fd, int to, int flags) { return end_dup(fd, REAL(dup3)(fd, to, flags)); }

#define WRAP_FCNTL(name) \
    EXPORT int name(int fd, int command, ...) \
    { \
        va_list rest; \
        va_start(rest, command); \
        void *argument = va_arg(rest, void *); \
        va_end(rest); \
        int result = REAL(name)(fd, command, argument); \
        return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? end_dup(fd, result) : result; \
    }
WRAP_FCNTL(fcntl)
WRAP_FCNTL(fcntl64)

EXPORT ssize_t write(int fd, const void *data, size_t n)
{
    struct call c = begin(OP_WRITE, file_of(fd), (int64_t)n);
    ssize_t result = REAL(write)(fd, data, n);
    end_at_position(&c, fd, result);
    return result;
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int n)
{
    uint32_t file = file_of(fd);
    struct call c = begin(OP_WRITE, file, file ? total(parts, n) : 0);
    ssize_t result = REAL(writev)(fd, parts, n);
    end_at_position(&c, fd, result);
    return result;
}

#define WRAP_PWRITE(name, offset_type) \
    EXPORT ssize_t name(int fd, const void *data, size_t n, offset_type offset) \
    { \
        struct call c = begin(OP_WRITE, file_of(fd), (int64_t)n); \
        c.offset = offset; \
        ssize_t result = REAL(name)(fd, data, n, offset); \
        end(&c, result); \
        return result; \
    }
WRAP_PWRITE(pwrite, off_t)
WRAP_PWRITE(pwrite64, off64_t)

/* Offset -1 in the calls with flags means the descriptor's own position. */
#define WRAP_PWRITEV(name, parameters, arguments) \
    EXPORT ssize_t name parameters \
    { \
        uint32_t file = file_of(fd); \
        struct call c = begin(OP_WRITE, file, file ? total(parts, n) : 0); \
        c.offset = offset; \
        ssize_t result = REAL(name) arguments; \
        if (offset == -1) end_at_position(&c, fd, result); \
        else end(&c, result); \
        return result; \
    }
WRAP_PWRITEV(pwritev, (int fd, const struct iovec *parts, int n, off_t offset), (fd, parts, n, offset))
WRAP_PWRITEV(pwritev64, (int fd, const struct iovec *parts, int n, off64_t offset), (fd, parts, n, offset))
WRAP_PWRITEV(pwritev2, (int fd, const struct iovec *parts, int n, off_t offset, int flags), (fd, parts, n, offset, flags))
WRAP_PWRITEV(pwritev64v2, (int fd, const struct iovec *parts, int n, off64_t offset, int flags), (fd, parts, n, offset, flags))

#define WRAP_FSYNC(name, op) \
    EXPORT int name(int fd) \
    { \
        struct call c = begin(op, file_of(fd), 0); \
        int result = REAL(name)(fd); \
        end(&c, result); \
        return result; \
    }
WRAP_FSYNC(fsync, OP_FSYNC)
WRAP_FSYNC(fdatasync, OP_FDATASYNC)

EXPORT ssize_t copy_file_range(int from, off64_t *from_at, int fd, off64_t *to_at, size_t n, unsigned flags)
{
    struct call c = begin(OP_COPY, file_of(fd), (int64_t)n);
    if (c.file && to_at) c.offset = *to_at;
    ssize_t result = REAL(copy_file_range)(from, from_at, fd, to_at, n, flags);
    if (to_at) end(&c, result);
    else end_at_position(&c, fd, result);
    return result;
}

#define WRAP_SENDFILE(name, offset_type) \
    EXPORT ssize_t name(int fd, int from, offset_type *from_at, size_t n) \
    { \
        struct call c = begin(OP_COPY, file_of(fd), (int64_t)n); \
        ssize_t result = REAL(name)(fd, from, from_at, n); \
        end_at_position(&c, fd, result); \
        return result; \
    }
WRAP_SENDFILE(sendfile, off_t)
WRAP_SENDFILE(sendfile64, off64_t)

/* A shared writable mapping: what is stored through it is seen by nobody, so its length is recorded. */
#define WRAP_MMAP(name, offset_type) \
    EXPORT void *name(void *at, size_t n, int protection, int flags, int fd, offset_type offset) \
    { \
        int shared = (flags & MAP_SHARED) && (protection & PROT_WRITE) && !(flags & MAP_ANONYMOUS); \
        struct call c = begin(OP_MMAP, shared ? file_of(fd) : 0, (int64_t)n); \
        c.offset = offset; \
        void *result = REAL(name)(at, n, protection, flags, fd, offset); \
        end(&c, result == MAP_FAILED ? -1 : (int64_t)n); \
        return result; \
    }
WRAP_MMAP(mmap, off_t)
WRAP_MMAP(mmap64, off64_t)

#define WRAP_TRUNCATE(name, parameters, arguments, file) \
    EXPORT int name parameters \
    { \
        struct call c = begin(OP_TRUNCATE, file, 0); \
        c.offset = length; \
        int result = REAL(name) arguments; \
        end(&c, result); \
        return result; \
    }
WRAP_TRUNCATE(ftruncate, (int fd, off_t length), (fd, length), file_of(fd))
WRAP_TRUNCATE(ftruncate64, (int fd, off64_t length), (fd, length), file_of(fd))
WRAP_TRUNCATE(truncate, (const char *path, off_t length), (path, length), watch(AT_FDCWD, path))
WRAP_TRUNCATE(truncate64, (const char *path, off64_t length), (path, length), watch(AT_FDCWD, path))

/* A rename into or out of the watched directories is recorded with 0 for the side that is outside. */
static struct call begin_rename(int from_dir, const char *from, int to_dir, const char *to)
{
    uint32_t source = watch(from_dir, from), target = watch(to_dir, to);
    struct call c = begin(OP_RENAME, source ? source : target, 0);
    c.file = source, c.other = target;
    return c;
}

#define WRAP_RENAME(name, parameters, arguments, from_dir, to_dir) \
    EXPORT int name parameters \
    { \
        struct call c = begin_rename(from_dir, from, to_dir, to); \
        int result = REAL(name) arguments; \
        end(&c, result); \
        return result; \
    }
WRAP_RENAME(rename, (const char *from, const char *to), (from, to), AT_FDCWD, AT_FDCWD)
WRAP_RENAME(renameat, (int d, const char *from, int e, const char *to), (d, from, e, to), d, e)
WRAP_RENAME(renameat2, (int d, const char *from, int e, const char *to, unsigned f), (d, from, e, to, f), d, e)

#define WRAP_UNLINK(name, parameters, arguments, dirfd) \
    EXPORT int name parameters \
    { \
        struct call c = begin(OP_UNLINK, watch(dirfd, path), 0); \
        int result = REAL(name) arguments; \
        end(&c, result); \
        return result; \
    }
WRAP_UNLINK(unlink, (const char *path), (path), AT_FDCWD)
WRAP_UNLINK(remove, (const char *path), (path), AT_FDCWD)
WRAP_UNLINK(unlinkat, (int d, const char *path, int flags), (d, path, flags), d)

/* ---- streams ---- */

#define WRAP_FOPEN(name) \
    EXPORT FILE *name(const char *path, const char *mode) \
    { \
        struct call c = begin(OP_STREAM_OPEN, watch(AT_FDCWD, path), 0); \
        return end_stream_open(&c, REAL(name)(path, mode)); \
    }
WRAP_FOPEN(fopen)
WRAP_FOPEN(fopen64)

#define WRAP_FREOPEN(name) \
    EXPORT FILE *name(const char *path, const char *mode, FILE *stream) \
    { \
        uint32_t file = path ? watch(AT_FDCWD, path) : stream_file(stream); \
        struct call c = begin(OP_STREAM_OPEN, file, 0); \
        set_file(fileno(stream), 0); \
        return end_stream_open(&c, REAL(name)(path, mode, stream)); \
    }
WRAP_FREOPEN(freopen)
WRAP_FREOPEN(freopen64)

EXPORT FILE *fdopen(int fd, const char *mode)
{
    struct call c = begin(OP_STREAM_FDOPEN, file_of(fd), 0);
    FILE *stream = REAL(fdopen)(fd, mode);
    end(&c, stream ? 0 : -1);
    return stream;
}

EXPORT int fclose(FILE *stream)
{
    struct call c = begin(OP_STREAM_CLOSE, stream_file(stream), 0);
    if (trace) set_file(fileno(stream), 0);
    int result = REAL(fclose)(stream);
    end(&c, result);
    return result;
}

EXPORT int fflush(FILE *stream)
{
    struct call c = begin(OP_STREAM_FLUSH, stream_file(stream), 0);
    int result = REAL(fflush)(stream);
    end(&c, result);
    return result;
}

#undef fwrite_unlocked
#define WRAP_FWRITE(name) \
    EXPORT size_t name(const void *data, size_t size, size_t n, FILE *stream) \
    { \
        struct call c = begin(OP_STREAM_WRITE, stream_file(stream), (int64_t)(size * n)); \
        size_t result = REAL(name)(data, size, n, stream); \
        end_stream_write(&c, stream, (int64_t)(result * size), result < n); \
        return result; \
    }
WRAP_FWRITE(fwrite)
WRAP_FWRITE(fwrite_unlocked)

/* `n` is the number of bytes that a successful call writes; `result` is negative when it failed. */
#define WRAP_PUT(name, parameters, arguments, n) \
    EXPORT int name parameters \
    { \
        struct call c = begin(OP_STREAM_WRITE, stream_file(stream), 0); \
        int result = REAL(name) arguments; \
        end_stream_write(&c, stream, result < 0 ? 0 : (int64_t)(n), result < 0); \
        return result; \
    }
#undef putc
WRAP_PUT(fputc, (int byte, FILE *stream), (byte, stream), 1)
WRAP_PUT(putc, (int byte, FILE *stream), (byte, stream), 1)
WRAP_PUT(fputs, (const char *text, FILE *stream), (text, stream), strlen(text))
WRAP_PUT(vfprintf, (FILE *stream, const char *format, va_list values), (stream, format, values), result)

EXPORT int fprintf(FILE *stream, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int result = vfprintf(stream, format, values);
    va_end(values);
    return result;
}

EXPORT int __vfprintf_chk(FILE *stream, int flag, const char *format, va_list values);
WRAP_PUT(__vfprintf_chk, (FILE *stream, int flag, const char *format, va_list values),
         (stream, flag, format, values), result)

EXPORT int __fprintf_chk(FILE *stream, int flag, const char *format, ...);
EXPORT int __fprintf_chk(FILE *stream, int flag, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int result = __vfprintf_chk(stream, flag, format, values);
    va_end(values);
    return result;
}
