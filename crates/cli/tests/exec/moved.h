// Of both programs about registered memory that moves: expectations, and a look at what is mapped.
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NEED(is_right) need(is_right, #is_right, __LINE__)
static void need(int is_right, const char *what, int line)
{
    if (!is_right) {
        fprintf(stderr, "%s:%d: ", __FILE__, line);
        perror(what);
        _exit(1);
    }
}

/// Whether the page at an address is of a file that peers can map.
static int is_moved(const void *at)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    NEED(maps != NULL);
    char line[512];
    int is = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long first, end;
        if (sscanf(line, "%lx-%lx", &first, &end) == 2 && first <= (uintptr_t)at && (uintptr_t)at < end)
            is = strstr(line, "hca-pages") != NULL;
    }
    fclose(maps);
    return is;
}
