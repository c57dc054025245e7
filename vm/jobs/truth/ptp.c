// A PTP clock of an adapter goes forward, as fast as the machine's.
//
//   ptp /dev/ptpN
#include "ends.h"

#include "clocks.h"
#include <fcntl.h>

static clockid_t ptp;
static int64_t read_ptp(void) { return nanoseconds(ptp); }

int main(int argc, char **argv) {
    if (argc != 2) die("usage: ptp /dev/ptpN");
    int file = open(argv[1], O_RDONLY);
    if (file < 0) die("%s: %s", argv[1], strerror(errno));
    // How Linux makes a clock of a descriptor: include/linux/posix-timers.h.
    ptp = (~(clockid_t)file << 3) | 3;
    check_rate(read_ptp, argv[1]);
    return 0;
}
