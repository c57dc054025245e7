# shellcheck shell=dash
# What programs of guests have in common. They end with `finish`.
failures=0

fail() {
    echo "FAILED  $*"
    failures=$((failures + 1))
}

# step NAME SECONDS PROGRAM...: runs it for so long at most. What it says is shown where it fails, or VERBOSE is set.
step() {
    name=$1 limit=$2
    shift 2
    read -r begun _ </proc/uptime
    case $1 in
    # Functions of this file need a shell.
    bind | unbind | until_true) set -- sh -c '. /job/lib.sh; "$@"' sh "$@" ;;
    esac
    timeout -s KILL "$limit" "$@" >/tmp/step.log 2>&1
    code=$?
    read -r ended _ </proc/uptime
    if [ $code -eq 0 ]; then
        echo "ok      $name ($(awk "BEGIN { print $ended - $begun }") s)"
        [ -z "$VERBOSE" ] || sed 's/^/        /' /tmp/step.log
    else
        fail "$name (exit code $code; 137 is the limit of $limit s): $*"
        sed 's/^/        /' /tmp/step.log
    fi
    return $code
}

# until_true SECONDS COMMAND: waits for it.
until_true() {
    tries=$(($1 * 10))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

# function_of VENDOR:DEVICE [N]: the address of the (Nth) PCI function with these ids.
function_of() {
    for at in /sys/bus/pci/devices/*; do
        [ "$(cat "$at/vendor"):$(cat "$at/device")" = "0x${1%:*}:0x${1#*:}" ] && basename "$at"
    done | sed -n "${2:-1}p"
}

bind() { # address, driver
    unbind "$1"
    echo "$2" >"/sys/bus/pci/devices/$1/driver_override"
    echo "$1" >/sys/bus/pci/drivers_probe
    [ "$(basename "$(readlink "/sys/bus/pci/devices/$1/driver")")" = "$2" ]
}

unbind() { # address
    [ ! -e "/sys/bus/pci/devices/$1/driver" ] || echo "$1" >"/sys/bus/pci/devices/$1/driver/unbind"
}

# The kernel's log from here on is what log_is_clean looks at.
log_begin() { echo "hca-vm: begin" >/dev/kmsg; }

# log_is_clean [PATTERN]: nothing of the level of a warning, or of the drivers at work, beyond lines that the pattern allows.
log_is_clean() {
    # Raw lines begin with their level; continued ones with a blank.
    dmesg -r | awk '/hca-vm: begin/ { n = 0; next } { line[n++] = $0 } END { for (i = 0; i < n; i++) print line[i] }' |
        grep -E '^<([0-4]|12)>|WARNING|BUG:|Call Trace|mlx5|vfio' |
        grep -vE "${1:-^$}" >/tmp/log
    if [ -s /tmp/log ]; then
        fail "the kernel's log is clean"
        sed 's/^/        /' /tmp/log
    else
        echo "ok      the kernel's log is clean"
    fi
}

finish() {
    [ "$failures" -eq 0 ] || {
        echo "$failures failed"
        exit 1
    }
    exit 0
}
