// A clock of the adapter beside the machine's own.
#include <time.h>

static inline int64_t nanoseconds(clockid_t clock) {
    struct timespec now;
    if (clock_gettime(clock, &now)) die("clock_gettime: %s", strerror(errno));
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

// It goes forward, and as fast as the machine's: what passed by it in a second is no less than what passed for sure, and no
// more than what can have passed, but for a twentieth, by which clocks of emulated machines differ.
static inline void check_rate(int64_t (*read_clock)(void), const char *what) {
    int64_t before = nanoseconds(CLOCK_MONOTONIC), first = read_clock(), after = nanoseconds(CLOCK_MONOTONIC), last = first;
    while (nanoseconds(CLOCK_MONOTONIC) < after + 1000000000) {
        int64_t now = read_clock();
        if (now < last) die("%s goes back: %" PRId64 ", then %" PRId64, what, last, now);
        last = now;
    }
    int64_t least = nanoseconds(CLOCK_MONOTONIC) - after, passed = read_clock() - first;
    int64_t most = nanoseconds(CLOCK_MONOTONIC) - before;
    printf("%s: %" PRId64 " ns passed while %" PRId64 " to %" PRId64 " ns did\n", what, passed, least, most);
    if (passed < least - least / 20 || passed > most + most / 20) die("%s is too slow or too fast", what);
}
