#!/bin/sh
# Plants protocol bugs into a copy of the workspace, one at a time, and requires that the simulator finds
# each: crates/sim/planted/*.patch. Usage: crates/sim/planted.sh [SEEDS]
set -eu
seeds=${1:-2000}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$work/target}"

missed=0
for patch in "$root"/crates/sim/planted/*.patch; do
    name=$(basename "$patch" .patch)
    rm -rf "$work/tree"
    mkdir "$work/tree"
    cp -R "$root/Cargo.toml" "$root/Cargo.lock" "$root/crates" "$root/benches" "$work/tree/"
    patch --quiet --directory "$work/tree" --strip 1 <"$patch"
    (cd "$work/tree" && cargo build --quiet --release -p hca-sim)
    if "$CARGO_TARGET_DIR/release/hca-sim" --seeds "$seeds" >"$work/out" 2>&1; then
        echo "$name: NOT FOUND in $seeds seeds"
        missed=1
    elif grep -q '^violation' "$work/out"; then
        echo "$name: found; $(grep '^violation' "$work/out" | cut -c1-160)"
    else
        echo "$name: hca-sim failed otherwise:"
        tail -5 "$work/out"
        missed=1
    fi
done
exit $missed
