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
    [ $code -ne 0 ] || ! wrong_bytes /tmp/step.log || code=wrong
    read -r ended _ </proc/uptime
    if [ $code = 0 ]; then
        echo "ok      $name ($(awk "BEGIN { print $ended - $begun }") s)"
        [ -z "$VERBOSE" ] || sed 's/^/        /' /tmp/step.log
    else
        fail "$name (exit code $code; 137 is the limit of $limit s; wrong: bytes that came): $*"
        sed 's/^/        /' /tmp/step.log
    fi
    [ $code = 0 ]
}

# ibv_*_pingpong -c tells what is wrong, and ends with success.
wrong_bytes() { grep -q "invalid data" "$1"; }

# until_true SECONDS COMMAND: waits for it.
until_true() {
    read -r begun _ </proc/uptime
    deadline=$((${begun%.*} + $1))
    shift
    until "$@"; do
        read -r now _ </proc/uptime
        [ "${now%.*}" -lt $deadline ] || return 1
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

# A program of this guest waits for connections at their port, 18515.
listening() { grep -qE ':4853 [0-9A-F]+:0000 0A ' /proc/net/tcp /proc/net/tcp6; }

listening_or_ended() { listening || ! kill -0 "$waits" 2>/dev/null; }

# both NAME SECONDS PROGRAM...: it twice in this guest, as the one that waits, and as the one that calls it.
both() {
    what=$1 within=$2
    shift 2
    ends "$what" "$within" "$*" "$* 127.0.0.1"
}

# ends NAME SECONDS WAITS CALLS: a command line that waits, and the one that calls it, in this guest.
ends() {
    what=$1 within=$2
    # shellcheck disable=SC2086 # a command line
    timeout -s KILL "$within" $3 >/tmp/waits.log 2>&1 &
    waits=$!
    until_true "$within" listening_or_ended
    if ! listening; then
        fail "$what: does not listen: $3"
        sed 's/^/        /' /tmp/waits.log
        kill $waits 2>/dev/null
        return 1
    fi
    # shellcheck disable=SC2086 # a command line
    step "$what" "$within" $4
    result=$?
    [ $result -eq 0 ] || kill $waits 2>/dev/null
    wait $waits
    code=$?
    [ $code -ne 0 ] || ! wrong_bytes /tmp/waits.log || code=wrong
    [ $code != 0 ] || [ $result -ne 0 ] || return 0
    [ $result -ne 0 ] || fail "$what, the side that waited (exit code $code)"
    sed 's/^/        waited: /' /tmp/waits.log
    return 1
}

# shellcheck disable=SC2034 # jobs use it
# What mlx5_core and mlx5_ib print on an adapter in silicon, too; that on write combining where doorbell pages are mapped
# without it, as in a guest.
MLX5_SAYS='firmware version: |enabling device \(|Port module event|MLX5E: StrdRq|renamed from eth|Link (up|down|ACTIVE|DOWN)$|Write combining is not supported$|available PCIe bandwidth|Rate limit: |Flow counters bulk query buffer size increased'

# probe_mlx5: stock drivers bind the function; sets `device` and `at`.
probe_mlx5() {
    step "modules" 60 modprobe -a ib_uverbs ib_umad mlx5_core mlx5_ib || return 1
    at=$(function_of "15b3:$1")
    [ -n "$at" ] || { fail "no function 15b3:$1"; return 1; }
    step "mlx5_core has $at" 60 until_true 60 test -e "/sys/bus/pci/drivers/mlx5_core/$at" || return 1
    step "mlx5_ib has it" 60 until_true 60 test -e /sys/class/infiniband/mlx5_0 || return 1
    device=mlx5_0
}

# mlx5_port: what verbs say of the port, which is active.
mlx5_port() {
    step "its port is active" 30 until_true 30 grep -q ACTIVE /sys/class/infiniband/"$device"/ports/1/state
    step "ibv_devinfo -v" 20 ibv_devinfo -v -d "$device"
}

# roce_port ADDRESS: the network interface is up and has it; sets `interface`, and `gid`, where the port has the address.
roce_port() {
    step "a network interface" 30 until_true 30 test -e "/sys/bus/pci/devices/$at/net"
    interface=$(basename "/sys/bus/pci/devices/$at/net/"*)
    step "it is up" 60 ip link set "$interface" up
    step "it has an address" 10 ip addr add "$1" dev "$interface"
    until_true 10 has_roce_gid || fail "no GID of RoCE v2"
    step "nobody else has it" 10 until_true 10 has_no_tentative_address "$interface"
}

# IPv6 addresses are of no use before others were asked whether they have them: flag 0x40.
has_no_tentative_address() {
    ! grep -q " [4-7c-f][0-9a-f] *$1\$" /proc/net/if_inet6
}

# The one of its GIDs of RoCE v2 that no MAC made is that of the address.
has_roce_gid() {
    local port=/sys/class/infiniband/mlx5_0/ports/1
    gid=$(grep -l 'RoCE v2' $port/gid_attrs/types/* 2>/dev/null | sed 's|.*/||' | sort -n | while read -r n; do
        grep -q '^fe80' "$port/gids/$n" || echo "$n"
    done | tail -n 1)
    [ -n "$gid" ]
}

# unload_mlx5: nobody holds the modules, and they leave.
unload_mlx5() {
    step "mlx5_ib leaves" 60 rmmod mlx5_ib
    step "mlx5_core leaves" 60 rmmod mlx5_core
}

# verbs_programs PINGPONG_ARGUMENTS PERFTEST_ARGUMENTS: rdma-core's and perftest's programs between processes of this guest.
verbs_programs() {
    for kind in rc uc ud srq; do
        # -c: the receiver checks each message's bytes.
        # shellcheck disable=SC2086 # lists
        both "ibv_${kind}_pingpong" 60 ibv_${kind}_pingpong -d $device -c -n 200 $1
        # shellcheck disable=SC2086
        both "ibv_${kind}_pingpong -e" 60 ibv_${kind}_pingpong -d $device -c -n 200 -e $1
    done
    for program in ib_send_lat ib_write_lat ib_read_lat ib_atomic_lat; do
        # shellcheck disable=SC2086
        both "$program" 60 $program -d $device -n 200 $2
    done
    # shellcheck disable=SC2086
    {
        both "ib_send_lat -c UD" 60 ib_send_lat -c UD -d $device -n 200 $2
        both "ib_send_lat -e" 60 ib_send_lat -e -d $device -n 200 $2
        both "ib_send_bw" 60 ib_send_bw -d $device -n 500 $2
        both "ib_send_bw -e" 60 ib_send_bw -e -d $device -n 500 $2
        both "ib_write_bw" 60 ib_write_bw -d $device -n 500 $2
        # WRITEs have no events at a receiver, and this perftest takes -e with none of them.
        both "ib_read_bw" 60 ib_read_bw -d $device -n 500 $2
        both "ib_send_bw -s 1 MiB" 60 ib_send_bw -s 1048576 -d $device -n 100 $2
        # Two hundred queue pairs are more than fit the first pages: the function asks for others, and offers them back.
        both "ib_send_bw -q 100" 60 ib_send_bw -q 100 -s 1024 -t 8 -r 16 -d $device -n 20 $2
        both "ib_write_bw -s 8 MiB" 60 ib_write_bw -s 8388608 -d $device -n 20 $2
    }
}
