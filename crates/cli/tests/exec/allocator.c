// An allocator as programs preload or link it: it reads a file as it begins, with its lock held, and ends a program
// that allocates meanwhile on the same thread.
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int has_begun;
static pthread_t beginner;

void *malloc(size_t len)
{
    static const char again[] = "an allocation within the allocator's own\n";
    if (!__atomic_load_n(&has_begun, __ATOMIC_ACQUIRE)) {
        if (beginner == pthread_self()) {
            if (write(STDERR_FILENO, again, sizeof again - 1) > 0)
                _exit(9);
        }
        pthread_mutex_lock(&lock);
        if (!has_begun) {
            char options[64];
            beginner = pthread_self();
            if (readlink("/etc/allocator.conf", options, sizeof options) > 0)
                _exit(8);
            __atomic_store_n(&has_begun, 1, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&lock);
    }
    return __libc_malloc(len);
}

/// Allocators begin with the first constructor that allocates.
static __attribute__((constructor)) void begin(void) { free(malloc(1)); }
