// What a program may do with registered memory that peers can map: unmap parts of it, forbid it, fork without a free
// descriptor, run code there. A forked child has a copy of all of it, and the program's next registrations are right.
// Ends with "nothing lost".
#define _GNU_SOURCE
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moved.h"

enum { PAGE = 4096, LEN = 16 * PAGE, SECONDS = 60, BOTH = PROT_READ | PROT_WRITE };
enum { RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static char *pages(void *at, int len, int rights)
{
    char *made = mmap(at, len, rights, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
    NEED(made != MAP_FAILED);
    return made;
}

static int to_child[2], to_parent[2];
/// A child that has what its parent has in the pages at an address, whatever either of both writes later.
static void child_has_a_copy(char *at, int len)
{
    at[0] = 'f';
    pid_t child = fork();
    NEED(child >= 0);
    char go = 'g';
    if (child == 0) {
        NEED(read(to_child[0], &go, 1) == 1 && at[0] == 'f');
        memset(at, 'c', len);
        NEED(write(to_parent[1], &go, 1) == 1 && read(to_child[0], &go, 1) == 1 && at[0] == 'c');
        _exit(0);
    }
    memset(at, 'p', len);
    NEED(write(to_child[1], &go, 1) == 1);
    char one;
    // A child that has ended leaves nothing to wait for.
    fcntl(to_parent[0], F_SETFL, O_NONBLOCK);
    int status = 0, ended = 0;
    while (read(to_parent[0], &one, 1) != 1 && !(ended = waitpid(child, &status, WNOHANG) == child))
        usleep(100);
    NEED(!ended && at[0] == 'p' && at[len - 1] == 'p');
    at[0] = 'q';
    NEED(write(to_child[1], &go, 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
}

static struct ibv_pd *pd;
static struct ibv_mr *registered(void *at, size_t len)
{
    struct ibv_mr *mr = ibv_reg_mr(pd, at, len, RIGHTS);
    NEED(mr != NULL);
    return mr;
}

/// Parts that are left of a region after others are unmapped.
static void parts(void)
{
    char *at = pages(NULL, LEN, BOTH);
    struct ibv_mr *mr = registered(at, LEN);
    NEED(is_moved(at) && munmap(at, PAGE) == 0);
    struct ibv_mr *rest = registered(at + PAGE, LEN - PAGE);
    child_has_a_copy(at + PAGE, LEN - PAGE);
    // Other memory there is none of the file's.
    pages(at, PAGE, BOTH);
    struct ibv_mr *other = registered(at, PAGE);
    child_has_a_copy(at, LEN);
    NEED(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(rest) == 0 && ibv_dereg_mr(other) == 0);
    NEED(!is_moved(at) && !is_moved(at + PAGE) && at[0] == 'q' && at[LEN - 1] == 'p');
    munmap(at, LEN);
}
/// Pages that the program may not access for a while.
static void forbidden(int rights)
{
    char *at = pages(NULL, LEN, BOTH);
    struct ibv_mr *mr = registered(at, LEN);
    memset(at, 'm', LEN);
    NEED(is_moved(at) && mprotect(at + PAGE, PAGE, rights) == 0);
    pid_t child = fork();
    NEED(child >= 0);
    char go = 'g';
    if (child == 0) {
        NEED(read(to_child[0], &go, 1) == 1 && mprotect(at + PAGE, PAGE, BOTH) == 0);
        _exit(at[PAGE] != 'm');
    }
    NEED(mprotect(at + PAGE, PAGE, BOTH) == 0);
    at[PAGE] = 'p';
    int status;
    NEED(write(to_child[1], &go, 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    at[PAGE] = 'm';
    // As they are registered once more, or no more.
    NEED(mprotect(at + PAGE, PAGE, rights) == 0);
    struct ibv_mr *second = registered(at, PAGE);
    NEED(ibv_dereg_mr(second) == 0 && ibv_dereg_mr(mr) == 0 && mprotect(at + PAGE, PAGE, BOTH) == 0);
    for (int i = 0; i < LEN; i++)
        NEED(at[i] == 'm');
    child_has_a_copy(at, LEN);
    munmap(at, LEN);
}
/// No descriptor is free.
static void no_descriptors(void)
{
    char *at = pages(NULL, LEN, BOTH);
    struct ibv_mr *mr = registered(at, LEN);
    NEED(is_moved(at));
    struct rlimit before, few;
    NEED(getrlimit(RLIMIT_NOFILE, &before) == 0);
    int next = dup(0);
    NEED(next >= 0);
    close(next);
    few = (struct rlimit){ .rlim_cur = next, .rlim_max = before.rlim_max };
    NEED(setrlimit(RLIMIT_NOFILE, &few) == 0 && dup(0) < 0);
    struct ibv_mr *second = registered(at + PAGE, PAGE);
    child_has_a_copy(at, LEN);
    NEED(ibv_dereg_mr(second) == 0 && ibv_dereg_mr(mr) == 0);
    child_has_a_copy(at, LEN);
    char *other = pages(NULL, LEN, BOTH);
    mr = registered(other, LEN);
    NEED(setrlimit(RLIMIT_NOFILE, &before) == 0);
    child_has_a_copy(other, LEN);
    NEED(ibv_dereg_mr(mr) == 0);
    munmap(at, LEN);
    munmap(other, LEN);
}
/// All of the heap, in which this library has memory, too.
static void whole_heap(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    NEED(maps != NULL);
    char line[512];
    unsigned long begin = 0, end = 0;
    while (fgets(line, sizeof line, maps) && !strstr(line, "[heap]"))
        ;
    NEED(sscanf(line, "%lx-%lx", &begin, &end) == 2);
    fclose(maps);
    struct ibv_mr *mr = registered((void *)begin, end - begin);
    NEED(is_moved((void *)begin));
    NEED(ibv_dereg_mr(mr) == 0);
}
/// Code that the program has written.
static void code(void)
{
    char *at = pages(NULL, PAGE, BOTH | PROT_EXEC);
    at[0] = (char)0xc3;
    struct ibv_mr *mr = registered(at, PAGE);
    ((void (*)(void))at)();
    NEED(ibv_dereg_mr(mr) == 0);
    ((void (*)(void))at)();
    munmap(at, PAGE);
}

static void *wait_for_the_lock(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}
/// The program has more threads by the end of a region: its memory is of this process alone all the same, and pages
/// that the program gives up are zero.
static void threads(void)
{
    char *at = pages(NULL, LEN, BOTH);
    struct ibv_mr *mr = registered(at, LEN);
    memset(at, 't', LEN);
    NEED(is_moved(at));
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    pthread_mutex_lock(&lock);
    NEED(pthread_create(&thread, NULL, wait_for_the_lock, &lock) == 0 && ibv_dereg_mr(mr) == 0);
    NEED(at[0] == 't' && at[LEN - 1] == 't');
    NEED(madvise(at, PAGE, MADV_DONTNEED) == 0 && at[0] == 0 && at[PAGE] == 't');
    child_has_a_copy(at, LEN);
    pthread_mutex_unlock(&lock);
    NEED(pthread_join(thread, NULL) == 0);
    munmap(at, LEN);
}

int main(void)
{
    alarm(SECONDS);
    NEED(pipe(to_child) == 0 && pipe(to_parent) == 0);
    struct ibv_device **devices = ibv_get_device_list(NULL);
    NEED(devices && devices[0]);
    struct ibv_context *context = ibv_open_device(devices[0]);
    NEED(context != NULL && (pd = ibv_alloc_pd(context)) != NULL);
    parts();
    forbidden(PROT_READ);
    forbidden(PROT_NONE);
    code();
    no_descriptors();
    threads();
    whole_heap();
    NEED(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return puts("nothing lost") < 0;
}
