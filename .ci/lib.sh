# Shared by run and nightly: headings, timings, and what a fresh Debian lacks.
export CI=true CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_TERM_PROGRESS_WHEN=never
# Enough for backtraces, and much less to link.
export CARGO_PROFILE_DEV_DEBUG=line-tables-only
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.."

started=$SECONDS
failed=()

# step NAME COMMAND...: runs it, tells how long it took, and goes on when it fails.
step() {
    local name=$1 begun=$SECONDS status=0
    shift
    printf '\n=== %s\n' "$name"
    # A command of && and || would lose errexit; a subshell of its own keeps it.
    set +e
    (set -e; "$@")
    status=$?
    set -e
    printf -- '--- %s: %s (%d s)\n' "$name" "$([ $status = 0 ] && echo ok || echo "FAILED, status $status")" $((SECONDS - begun))
    [ $status = 0 ] || failed+=("$name")
}

skip() { printf '\n=== %s\n--- skipped: %s\n' "$1" "$2"; }

# need COMMAND PACKAGE: installs a Debian package that provides COMMAND, where we may.
need() {
    command -v "$1" >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        if [ -z "${apt_updated:-}" ]; then apt-get update -qq >/dev/null && apt_updated=1; fi
        apt-get install -y -qq --no-install-recommends "$2" >/dev/null
    else
        echo "$1 is missing; install the package $2 (tests that need it say so)"
    fi
}

# component NAME COMMAND: a part of the Rust toolchain.
component() {
    cargo "$2" --version >/dev/null 2>&1 || rustup component add "$1"
}

finish() {
    echo
    if [ ${#failed[@]} != 0 ]; then
        printf 'FAILED: %s\n' "${failed[@]}"
        echo "test result: FAILED after $((SECONDS - started)) s"
        exit 1
    fi
    echo "test result: ok. all steps passed in $((SECONDS - started)) s"
}
