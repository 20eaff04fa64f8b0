/* The event file of the preload recorder, and which file each descriptor stands for.
 *
 * Part of iotrace.c, which includes it once; nothing here wraps a function.
 * The layout is read by iotrace_events.py; LAYOUT_VERSION guards the pair.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LAYOUT_VERSION 1
#define HEADER_BYTES 4096
#define NAMES_BYTES (1u << 20)
#define DEFAULT_EVENTS (1u << 18)
#define NAME_SLOTS (1u << 14)
#define MAX_PREFIXES 16
#define MAX_FDS 65536

enum op {
    OP_OPEN = 1, OP_CLOSE, OP_WRITE, OP_STREAM_OPEN, OP_STREAM_WRITE, OP_STREAM_FLUSH, OP_STREAM_CLOSE, OP_FSYNC,
    OP_FDATASYNC, OP_RENAME, OP_COPY, OP_MMAP, OP_TRUNCATE, OP_UNLINK, OP_DUP,
    OP_STREAM_FDOPEN
};

/* `op` is stored last: an event whose op is 0 was begun but not finished. */
struct event {
    _Atomic uint16_t op;
    uint16_t error;
    uint32_t thread, file, other;
    int64_t offset, length, start_ns, end_ns;
};

struct header {
    char magic[8];
    uint32_t version, header_bytes, names_bytes, event_bytes;
    uint64_t capacity;
    _Atomic uint64_t reserved;    /* events asked for; more than `capacity` when some were dropped */
    _Atomic uint64_t names_used;  /* bytes of the name area; a file's number is its name's offset there */
    _Atomic uint64_t unnamed;     /* opens of watched files that found no room for a name or a descriptor */
    int64_t pid, ppid, realtime_ns, monotonic_ns;
    char host[64], boot_id[40], program[64];
};

static struct header *trace;    /* NULL: nothing is recorded */
static char *names;
static struct event *events;
static pid_t own_pid;           /* differs from getpid() in a vfork child, which shares this memory */
static _Atomic int start_later; /* a forked child opens its own file at its first event */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t name_slots[NAME_SLOTS];
static _Atomic uint32_t fd_file[MAX_FDS];
static char prefixes[MAX_PREFIXES][PATH_MAX];
static int n_prefixes;
static __thread uint32_t thread_id __attribute__((tls_model("initial-exec")));

/* The next definition of a function, looked up once per place of use. */
#define REAL(name) ({ \
        static __typeof__(&name) found_; \
        if (!found_) found_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        found_; })

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ---- the event file ---- */

/* Blocks are reserved now: a store to a page without a block behind it would be a SIGBUS later.
 * Whether they would fit is asked first: trying would fill the disk for a moment, or bring SIGXFSZ. */
static int reserve_space(int fd, size_t bytes)
{
    struct statvfs disk;
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur < bytes) return -1;
    if (fstatvfs(fd, &disk) || disk.f_bavail * disk.f_frsize < bytes) return -1;
    if (REAL(ftruncate)(fd, (off_t)bytes)) return -1;
    return syscall(SYS_fallocate, fd, 0, 0L, (long)bytes) == 0 || errno == EOPNOTSUPP ? 0 : -1;
}

static void *create_event_file(const char *host, size_t bytes)
{
    char path[PATH_MAX];
    const char *directory = getenv("HPCCKPT_IOTRACE_DIR");
    void *memory = MAP_FAILED;
    if (!directory || snprintf(path, sizeof path, "%s/%s.%d.iotrace", directory, host, (int)getpid()) >= PATH_MAX)
        return NULL;
    int fd = REAL(open)(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return NULL;
    if (reserve_space(fd, bytes) == 0)
        memory = REAL(mmap)(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REAL(close)(fd);
    if (memory != MAP_FAILED) return memory;
    REAL(unlink)(path);
    return NULL;
}

static void read_boot_id(char *into, size_t size)
{
    int fd = REAL(open)("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, into, size - 1);
    into[n > 0 ? n - 1 : 0] = 0; /* without its newline */
    REAL(close)(fd);
}

static uint64_t wanted_events(void)
{
    const char *text = getenv("HPCCKPT_IOTRACE_EVENTS");
    uint64_t wanted = text ? strtoull(text, NULL, 10) : 0;
    return wanted && wanted < (1ull << 32) ? wanted : DEFAULT_EVENTS;
}

static void start_trace(void)
{
    char host[64] = "unknown";
    uint64_t capacity = wanted_events();
    gethostname(host, sizeof host - 1);
    char *memory = create_event_file(host, HEADER_BYTES + NAMES_BYTES + capacity * sizeof(struct event));
    if (!memory) return;
    struct header *h = (struct header *)memory;
    *h = (struct header){.version = LAYOUT_VERSION, .header_bytes = HEADER_BYTES, .names_bytes = NAMES_BYTES,
                         .event_bytes = sizeof(struct event), .capacity = capacity, .names_used = 1,
                         .pid = getpid(), .ppid = getppid()};
    memcpy(h->host, host, sizeof host);
    snprintf(h->program, sizeof h->program, "%s", program_invocation_short_name);
    read_boot_id(h->boot_id, sizeof h->boot_id);
    h->realtime_ns = clock_ns(CLOCK_REALTIME);
    h->monotonic_ns = clock_ns(CLOCK_MONOTONIC);
    memcpy(h->magic, "HPCCKIOT", 8); /* last: a header with it is whole */
    if (trace) { /* in a forked child: descriptors that it inherited carry the parent's file numbers */
        memcpy(memory + HEADER_BYTES, names, trace->names_used);
        h->names_used = trace->names_used;
    }
    names = memory + HEADER_BYTES;
    events = (struct event *)(memory + HEADER_BYTES + NAMES_BYTES);
    trace = h;
}

static void read_prefixes(void)
{
    const char *text = getenv("HPCCKPT_IOTRACE_PATHS");
    while (text && *text && n_prefixes < MAX_PREFIXES) {
        size_t n = strcspn(text, ":"), keep = n;
        while (keep > 1 && text[keep - 1] == '/') keep--;
        if (keep && keep < PATH_MAX) {
            memcpy(prefixes[n_prefixes], text, keep);
            prefixes[n_prefixes++][keep] = 0;
        }
        text += n + (text[n] == ':');
    }
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

static void in_forked_child(void)
{
    thread_id = 0;
    own_pid = getpid();
    start_later = trace != NULL;
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void set_up(void)
{
    int saved = errno;
    own_pid = getpid();
    read_prefixes();
    if (n_prefixes) start_trace();
    if (trace) pthread_atfork(before_fork, after_fork, in_forked_child);
    errno = saved;
}

/* Called with the lock held. A child that gets no file of its own must not write into its parent's. */
static void start_child_trace(void)
{
    struct header *parent = trace;
    start_later = 0;
    start_trace();
    if (trace == parent) trace = NULL;
}

/* ---- names and descriptors ---- */

/* The path as one absolute name without "//", "." and ".."; symbolic links stay as they are written. */
static int absolute_path(int dirfd, const char *path, char out[PATH_MAX])
{
    char joined[2 * PATH_MAX] = "", link[64], *save = NULL;
    size_t used = 0;
    if (path[0] != '/') {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
        if (dirfd == AT_FDCWD ? !getcwd(joined, PATH_MAX) : readlink(link, joined, PATH_MAX - 1) < 0) return -1;
        strcat(joined, "/");
    }
    if (strlen(path) >= PATH_MAX) return -1;
    strcat(joined, path);
    out[0] = 0;
    for (char *part = strtok_r(joined, "/", &save); part; part = strtok_r(NULL, "/", &save)) {
        if (!strcmp(part, ".")) continue;
        if (!strcmp(part, "..")) {
            while (used && out[--used] != '/') { }
            out[used] = 0;
            continue;
        }
        int n = snprintf(out + used, PATH_MAX - used, "/%s", part);
        if (n >= (int)(PATH_MAX - used)) return -1;
        used += (size_t)n;
    }
    return 0;
}

static int is_watched(const char *path)
{
    for (int i = 0; i < n_prefixes; i++) {
        size_t n = strlen(prefixes[i]);
        if (!strncmp(path, prefixes[i], n) && (path[n] == 0 || path[n] == '/' || n == 1)) return 1;
    }
    return 0;
}

static uint32_t store_name(const char *path, uint32_t *slot)
{
    uint64_t at = trace->names_used, bytes = strlen(path) + 1;
    if (at + bytes > NAMES_BYTES) return 0;
    memcpy(names + at, path, bytes);
    trace->names_used = at + bytes;
    return *slot = (uint32_t)at;
}

/* The file number of a name, with the lock held; 0 when there is no room. */
static uint32_t number_of(const char *path)
{
    uint32_t hash = 2166136261u;
    for (const char *c = path; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (uint32_t tried = 0; tried < NAME_SLOTS; tried++) {
        uint32_t *slot = &name_slots[(hash + tried) % NAME_SLOTS];
        if (!*slot) return store_name(path, slot);
        if (!strcmp(names + *slot, path)) return *slot;
    }
    return 0;
}

/* The file number of a path; 0 when it is not watched (or nothing is traced). */
static uint32_t watch(int dirfd, const char *path)
{
    char name[PATH_MAX];
    int saved = errno;
    uint32_t file = 0;
    if (!trace || !path || getpid() != own_pid) return 0;
    if (absolute_path(dirfd, path, name) == 0 && is_watched(name)) {
        pthread_mutex_lock(&lock);
        if (start_later) start_child_trace();
        if (trace && !(file = number_of(name))) trace->unnamed++;
        pthread_mutex_unlock(&lock);
    }
    errno = saved;
    return file;
}

static uint32_t file_of(int fd)
{
    uint32_t file = trace && fd >= 0 && fd < MAX_FDS ? fd_file[fd] : 0;
    return file && getpid() == own_pid ? file : 0;
}

static void set_file(int fd, uint32_t file)
{
    if (!trace || fd < 0) return;
    if (fd >= MAX_FDS) {
        trace->unnamed += file != 0;
    } else if ((fd_file[fd] || file) && getpid() == own_pid) {
        fd_file[fd] = file;
    }
}
