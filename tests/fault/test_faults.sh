#!/usr/bin/env bash
# test_faults.sh - a call of the system fails, any one of them: memory that is not given,
# a file that cannot be opened, read, written, synced, closed or renamed.
#
#     test_faults.sh VLMOE [MEMORY] [FILES]
#
# Of every command MEMORY allocations, spread over all it makes, and of every call on files
# FILES.  The law: without memory exit code 6 and one message, otherwise the exit code of
# who needed the file and a message that names it; or success, with the right bytes.
# Nothing is half written under a final name, and the same command afterwards gives what
# it always gives.
source tests/train/tiny/tiny.sh

memory=${2:-4}
files=${3:-1}
faults=$(dirname "$vlmoe")/tests/libfaults.so
log=$tiny/case.log
cases=0

tiny_setup
rm -r "$tiny/data"
tiny_data "$tiny/data" 10

# ---- the commands: what each makes lies in $tiny/out ----

out=$tiny/out
run=(run.folder="$out" run.name=run train.steps=3 checkpoint.every=1 checkpoint.keep=1
    checkpoint.async=false data.hold_out=4 data.workers=0 eval.every=2 eval.rows=1
    sample.every=2 sample.count=1 sample.tokens=1 report.tensorboard=true)
before=()                               # what the program is started with
vlmoe() { timeout 60 "${before[@]}" "$vlmoe" "$@"; }
command() {
    case $1 in
    train) vlmoe train "$tiny/recipe.yaml" "${run[@]}" ;;
    resume) vlmoe train "$tiny/recipe.yaml" "${run[@]}" train.steps=4 ;;
    convert) vlmoe convert "$tiny/good/run/model" "$out/model" --shard-mb 1 ;;
    pack) vlmoe data pack "$tiny/data" "$out/shards" --skip ;;
    shards) vlmoe train "$tiny/recipe.yaml" "${run[@]}" data.sources.0.path="$tiny/packed" \
        data.sources.0.format=webdataset train.steps=1 ;;
    report) vlmoe report "$out/run" ;;
    image) vlmoe data image "$tiny"/data/*g --out "$out/pixels.safetensors" ;;
    generate) vlmoe generate "$tiny/good/run/model" --image "$(echo "$tiny"/data/1-*g)" \
        --prompt "What is this?" --tokens 2 ;;
    esac
}

# begin COMMAND: $out as the command expects it
begin() {
    rm -rf "$out" "$out".*
    case $1 in
    resume | report) cp -r "$tiny/good" "$out" ;;
    *) mkdir "$out" ;;
    esac
}

# state COMMAND: what a clock does not decide of all that lies in $out, and of the answer;
# of training states the newest (a failure may have kept an older one from being removed)
state() {
    (
        cd "$out" || exit
        newest=$(ls run/checkpoints | tail -n 1)
        find . -type f ! -name lock ! -name '*.idx' ! -path '*/events/*' ! -name report.html \
            ! -name metrics.jsonl ! -path './run/checkpoints/*' ! -name '*.new' |
            sort | xargs sha256sum
        sha256sum "run/checkpoints/$newest"/*
        [ -e run/metrics.jsonl ] && untimed run/metrics.jsonl
        [ "$1" = report ] || [ "$1" = train ] && tail -c 8 run/report.html
    ) 2>/dev/null
    [ "$1" = generate ] && cat "$tiny/case.out"
}

# with FAULT COMMAND: runs it, its words in $log
with() {
    rm -f "$tiny/count"
    before=(env FAULT="$1" FAULT_COUNT="$tiny/count" LD_PRELOAD="$faults")
    command "$2" >"$tiny/case.out" 2>"$log"
    local code=$?
    before=()
    return $code
}

# case CODES COMMAND FAULT
fault_case() {
    local codes=$1 command=$2 fault=$3 got
    begin "$command"
    with "$fault" "$command"
    got=$?
    cases=$((cases + 1))
    if [ $got -eq 0 ]; then
        [ "$(state "$command")" = "${right[$command]}" ] ||
            tiny_fail "$command, $fault: success with other results: $(cat "$log")
$(diff <(state "$command") <(echo "${right[$command]}") | head -n 10)"
        return
    fi
    [[ " $codes " == *" $got "* ]] ||
        tiny_fail "$command, $fault: exit code $got, expected one of $codes: $(tail -n 3 "$log")"
    case $fault in
    memory:*) grep -qE '^vlmoe: memory: no [0-9]+ bytes left for ' "$log" ||
        tiny_fail "$command, $fault: no message of memory: $(tail -n 3 "$log")" ;;
    *) grep -qE "^vlmoe: .*($tiny|/proc/|/sys/|standard output)" "$log" ||
        tiny_fail "$command, $fault: no file in the message: $(tail -n 3 "$log")" ;;
    esac
    # What was whole before the failure stays, and is not made again.
    case $command in
    convert) [ -e "$out/model" ] ;;
    pack) [ -e "$out/shards" ] ;;
    *) false ;;
    esac && got=0 || command "$command" >"$tiny/case.out" 2>"$log"
    got=$?
    [ $got -eq 0 ] ||
        tiny_fail "$command after $fault: exit code $got: $(tail -n 3 "$log")"
    grep -E 'not used|damaged' "$log" && tiny_fail "$command, $fault: left $(cat "$log")"
    [ "$(state "$command")" = "${right[$command]}" ] ||
        tiny_fail "$command after $fault: other results:
$(diff <(state "$command") <(echo "${right[$command]}") | head -n 10)"
}

# ---- what is right ----

declare -A right
begin train
command train >"$log" 2>&1 || tiny_fail "train: $(cat "$log")"
cp -r "$out" "$tiny/good"
"$vlmoe" data pack "$tiny/data" "$tiny/packed" >"$log" 2>&1 || tiny_fail "pack: $(cat "$log")"
commands=(train resume convert pack shards report image generate)
for name in "${commands[@]}"; do
    begin "$name"
    command "$name" >"$tiny/case.out" 2>"$log" || tiny_fail "$name: $(cat "$log")"
    right[$name]=$(state "$name")
done

# spread COUNT TOTAL: so many numbers from 1 to TOTAL, the ends among them
spread() {
    local i n=$(($1 < $2 ? $1 : $2))
    [ $n -ne 1 ] || echo $((1 + $2 / 2))
    for ((i = 0; i < n && n > 1; i++)); do
        echo $((1 + i * ($2 - 1) / (n - 1)))
    done
}

# count COMMAND CALL: how often the command makes that call
count() {
    begin "$1"
    with "$2:0:none" "$1" || tiny_fail "$1 counting $2: $(cat "$log")"
    cat "$tiny/count"
}

errors=(EIO ENOSPC EDQUOT EINTR EMFILE)
for name in "${commands[@]}"; do
    for n in $(spread "$memory" "$(count "$name" memory)"); do
        fault_case 6 "$name" "memory:$n:ENOMEM"
    done
    for call in open read write write_whole fsync ftruncate rename unlink close mkdir fflush; do
        for n in $(spread "$files" "$(count "$name" $call)"); do
            fault_case "2 3 4" "$name" "$call:$n:${errors[$((cases % 5))]}"
            case $call in
            read | write) fault_case "" "$name" "$call:$n:SHORT" ;;
            write_whole) fault_case "2 3 4" "$name" "$call:$n:LOST" ;;
            esac
        done
    done
done

echo "$cases cases"
[ "$cases" -ge 100 ] || tiny_fail "only $cases cases ran"
tiny_end
