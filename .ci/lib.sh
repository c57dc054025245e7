# Shared by run and nightly: headings, timings, and what a fresh Debian lacks.
export CI=true CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_TERM_PROGRESS_WHEN=never
# Builds without line numbers of backtraces: a tenth less to compile and to link. Debug builds in few units of code, as
# several crates are compiled at a time anyway: a fifth less again.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=2
case ${1-} in
-h | --help) exec sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$0" ;;
?*) echo "no such argument: $1; $0 --help tells what it does, and takes none" >&2; exit 2 ;;
esac
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-target}
started=$SECONDS
failed=()
skipped=0
tests_said=$target/tests.said
rm -f "$tests_said"
mkdir -p "$target"

# cpu_seconds NAME: sets it to the CPU time of what this shell has started and what has ended.
cpu_seconds() {
    local stat
    read -r -a stat <"/proc/$BASHPID/stat"
    # Linux counts in hundredths here, on every architecture.
    printf -v "$1" %d $(((stat[15] + stat[16]) / 100))
}

# step NAME COMMAND...: runs it, tells how long it took, and goes on when it fails.
step() {
    local name=$1 begun=$SECONDS status
    shift
    printf '\n=== %s\n' "$name"
    # A command of && and || would lose errexit; a subshell of its own keeps it.
    set +e
    (
        (set -e; "$@")
        status=$?
        cpu_seconds cpu
        [ $status = 0 ] && how=ok || how="FAILED, status $status"
        printf -- '--- %s: %s (%d s, %d s of CPU)\n' "$name" "$how" $((SECONDS - begun)) "$cpu"
        exit $status
    )
    status=$?
    set -e
    [ $status = 0 ] || failed+=("$name")
}

# beside FUNCTION: runs its steps beside the ones that follow, until `join`. In its place if there is one
# CPU, or too little memory for two compilers and two linkers at a time.
beside() {
    local free_kib
    free_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    if [ "$(nproc)" -lt 2 ] || [ "$free_kib" -lt 4000000 ]; then
        "$1"
        return
    fi
    aside=$(mktemp -d)
    trap end_aside EXIT
    # A process group of its own, so that it can be ended with all that it started.
    set -m
    (
        failed=()
        "$1"
        printf '%s\n' "${failed[@]}" >"$aside/failed"
    ) >"$aside/said" 2>&1 &
    aside_group=$!
    set +m
}

# join: waits for what runs beside, shows what it said, and takes over what failed.
join() {
    local name
    [ -n "${aside:-}" ] || return 0
    wait "$aside_group" || true
    aside_group=''
    cat "$aside/said"
    if [ -e "$aside/failed" ]; then
        while read -r name; do
            [ -z "$name" ] || failed+=("$name")
        done <"$aside/failed"
    else
        failed+=("what ran beside ended early")
    fi
    end_aside
}

end_aside() {
    [ -z "${aside_group:-}" ] || kill -- "-$aside_group" 2>/dev/null || true
    [ -z "${aside:-}" ] || rm -rf "$aside"
    aside='' aside_group=''
}

skip() {
    printf '\n=== %s\n--- skipped: %s\n' "$1" "$2"
    skipped=$((skipped + 1))
}

# need COMMAND PACKAGE: installs a Debian package that provides COMMAND, where we may.
need() {
    command -v "$1" >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        if [ -z "${apt_updated:-}" ]; then apt-get update -qq >/dev/null && apt_updated=1; fi
        apt-get install -y -qq --no-install-recommends "$2" >/dev/null && return
    fi
    echo "$1 is missing; install the package $2 (what needs it is skipped, and says so)"
}

# component NAME COMMAND: a part of the Rust toolchain.
component() {
    cargo "$2" --version >/dev/null 2>&1 || rustup component add "$1"
}

# Closes with a line `N passed, N failed, N skipped`: of the tests, and of steps what failed or was skipped.
finish() {
    local cpu name passed=0 wrong=0 left=0
    cpu_seconds cpu
    echo
    if [ -e "$tests_said" ]; then
        grep -E '^(programs|ignored|tests that said)' "$tests_said" || true
        read -r passed wrong left < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$tests_said") || true
    fi
    for name in "${failed[@]}"; do
        echo "FAILED: $name"
        # Its tests are counted one by one.
        [ "$name" = tests ] && [ "$wrong" != 0 ] || wrong=$((wrong + 1))
    done
    echo "all steps were done in $((SECONDS - started)) s, $cpu s of CPU"
    echo "$passed passed, $wrong failed, $((left + skipped)) skipped"
    [ ${#failed[@]} = 0 ] || exit 1
}

# What threads and processes share, in the orders that loom finds: all of them, in some models all with three switches.
concurrency() {
    # The models take seconds, and their compiler minutes: loom alone is optimised, and there is one build for all of
    # them.
    local -x RUSTFLAGS="${RUSTFLAGS-} --cfg loom -Awarnings" CARGO_TARGET_DIR="$target/loom"
    local -x CARGO_PROFILE_RELEASE_OPT_LEVEL=0
    cargo test -q --release --config profile.release.package.loom.opt-level=2 \
        --config profile.release.package.generator.opt-level=2 \
        -p hca-turn-lock -p softhca -p hca-fabric -p hca-verbs -p hca-mlx5 --lib loom
}
