#!/usr/bin/env bash
# run.sh - every test this machine can run, from a bare checkout: sets up, builds, tests.
#
#     tests/run.sh            Release, then AddressSanitizer, then ThreadSanitizer
#     tests/run.sh --quick    Release only
#     tests/run.sh --slow     with the tests that take minutes
#
# Exits 0 only when everything was built and every test passed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

quick=false
everyday=(-LE slow)
for option in "$@"; do
    case $option in
    --quick) quick=true ;;
    --slow) everyday=() ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done

bash recipes/install.sh build test stamps || exit 1

jobs=2
summary=
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
           --no-tests=error "$@"; then
        record "$type" passed "$start"
    else
        record "$type" FAILED "$start"
    fi
}

mkdir -p build
stage Release "${everyday[@]}"
if ! $quick; then
    stage Address "${everyday[@]}"
    stage Thread "${everyday[@]}" -L '^(run|equal|unit|data)$'
fi

echo "== summary ($SECONDS s)"
printf '%s' "$summary"
$failed && { echo "== not everything passed"; exit 1; }
echo "== everything passed"
