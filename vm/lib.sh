# shellcheck shell=bash
# shellcheck disable=SC2034 # those who read this use them
# Shared by setup and run: where things are, and how programs of the guests' system run on this machine.
cache=${HCA_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hca-vm}
root=$cache/root                    # a Debian system, unpacked and never started
libraries=$root/usr/lib/x86_64-linux-gnu
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }

# The comment at the top of the script is its help.
help() { sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$0"; exit "$1"; }

# theirs PROGRAM ARGUMENTS: a program of the guests' system with its own loader and libraries; nothing is installed here.
theirs() {
    local program=$root/usr/bin/$1
    [ -e "$program" ] || program=$root/usr/sbin/$1
    shift
    "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$program" "$@"
}

# needed FILE...: the libraries that programs of the guests' system load, as paths below $root.
needed() {
    local file
    for file in "$@"; do
        "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" --list "$file" | grep -oE "$libraries/[^ ]+"
    done | sort -u
}

# archive FOLDER: it as an archive that the kernel unpacks, on standard output.
archive() { (cd "$1" && find . | LC_ALL=C sort | theirs cpio -o -H newc -R 0:0 --quiet); }

kernel_version() { basename "$(find "$root/usr/lib/modules" -mindepth 1 -maxdepth 1 | LC_ALL=C sort -V | tail -n 1)"; }
