#!/usr/bin/env bash
# run.sh - every test this machine can run, from a bare checkout: sets up, builds, tests.
#
#     tests/run.sh            Release, then AddressSanitizer, then ThreadSanitizer
#     tests/run.sh --quick    Release only
#     tests/run.sh --slow     with the tests that take minutes
#
# Exits 0 only when everything was built, every test passed, and none was left out but those
# that tests/may_skip.txt lists.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

quick=false
everyday=(-LE slow)
for option in "$@"; do
    case $option in
    --quick) quick=true ;;
    --slow) everyday=() ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done

bash recipes/install.sh build test stamps || exit 1

jobs=2
summary=
skipped=0
failed=false

# Sanitizers want the plain address layout; some kernels randomise more than they bear.
plain=()
setarch "$(uname -m)" -R true 2>/dev/null && plain=(setarch "$(uname -m)" -R)

export OPENBLAS_NUM_THREADS=1       # the tests themselves run side by side
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp halt_on_error=1 second_deadlock_stack=1"

record() {                          # NAME RESULT START
    summary+=$(printf '  %-10s %-8s %4d s' "$1" "$2" $((SECONDS - $3)))$'\n'
    [ "$2" = passed ] || failed=true
}

# skips TYPE FOLDER: shows the tests that were left out there, and fails for one too many
skips() {
    local name log=$2/Testing/Temporary/LastTest.log allowed=true
    for name in $(sed -n 's/^\[  SKIPPED \] \([a-z_0-9]*\)$/\1/p' "$log" | sort -u); do
        skipped=$((skipped + 1))
        if grep -q "^$name " tests/may_skip.txt; then
            echo "== $1: skipped $name ($(sed -n "s/^$name  *//p" tests/may_skip.txt))"
        else
            echo "== $1: skipped $name, which tests/may_skip.txt does not list"
            allowed=false
        fi
    done
    $allowed
}

# stage TYPE CTEST-ARGUMENTS...: builds build/type and runs the tests chosen there
stage() {
    local type=$1 start=$SECONDS folder=build/${1,,}
    shift
    echo "== $type: building $folder"
    if ! cmake -S . -B "$folder" -DCMAKE_BUILD_TYPE="$type" -DBUILD_TESTS=ON \
           >"$folder.log" 2>&1 ||
       ! cmake --build "$folder" --parallel $jobs >>"$folder.log" 2>&1; then
        grep -n -m 40 -E 'error|Error|warning: unused' "$folder.log"
        tail -n 5 "$folder.log"
        echo "== $type: the build failed; all of it is in $folder.log"
        record "$type" unbuilt "$start"
        return
    fi
    echo "== $type: testing"
    local runner=()
    [ "$type" = Release ] || runner=("${plain[@]}")
    if "${runner[@]}" ctest --test-dir "$folder" --parallel $jobs --output-on-failure \
           --no-tests=error "$@" && skips "$type" "$folder"; then
        record "$type" passed "$start"
    else
        record "$type" FAILED "$start"
    fi
}

mkdir -p build
stage Release "${everyday[@]}"
if ! $quick; then
    stage Address "${everyday[@]}" -E speed     # of no interest there
    stage Thread "${everyday[@]}" -L '^(run|equal|unit|data)$'
fi

echo "== summary ($SECONDS s)"
printf '%s  %d skipped\n' "$summary" "$skipped"
$failed && { echo "== not everything passed"; exit 1; }
echo "== everything passed"
