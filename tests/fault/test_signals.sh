#!/usr/bin/env bash
# test_signals.sh - a signal at any moment: exit code 0 and a word about it, nothing torn,
# and the run goes on to what it would have been.
#
#     test_signals.sh VLMOE [SIGNALS] [SEED]
source tests/train/tiny/tiny.sh

signals=${2:-8}
seed=${3:-$((SRANDOM % 30000))}
RANDOM=$seed
echo "seed $seed, $signals signals"
tiny_setup

law=(train.steps=12 checkpoint.every=5 data.hold_out=9 eval.every=2 eval.rows=3 sample.every=4
    sample.count=1 sample.tokens=2)
start() {                               # NAME [key=value ...]: in the background
    "$vlmoe" train "$tiny/recipe.yaml" run.name="$1" "${law[@]}" "${@:2}" >"$tiny/$1.log" 2>&1 &
    process=$!
}

begun=$(date +%s%N)
train_well whole "${law[@]}"
whole=$((($(date +%s%N) - begun) / 1000000))    # ms
train_well three "${law[@]}" --ranks 3

# ---- at random moments of a run, at once again, until it is done ----

for ((i = 0; i < signals; i++)); do
    name=$([ $((i % 2)) -eq 0 ] && echo one || echo many)
    ranks=$([ $name = one ] && echo 1 || echo 3)
    start $name --ranks "$ranks"
    sleep "$(printf '%d.%03d' 0 $((RANDOM % (whole + 100) % 1000)))"
    word=$(shuf -n 1 -e TERM INT HUP --random-source=<(yes $RANDOM))
    kill -"$word" $process 2>/dev/null
    wait $process
    code=$?
    if [ $code -gt 128 ] && [ ! -s "$tiny/$name.log" ]; then
        continue                        # before the program listened
    fi
    [ $code -eq 0 ] || tiny_fail "$word to $name: exit code $code: $(tail -n 3 "$tiny/$name.log")"
    grep -qE 'stopped by a signal|is already done' "$tiny/$name.log" ||
        [ -e "$tiny/runs/$name/report.html" ] ||
        tiny_fail "$word to $name: no word about it: $(cat "$tiny/$name.log")"
    grep -E 'not used|damaged' "$tiny/$name.log" && tiny_fail "$word to $name left something torn"
done
train_well one "${law[@]}"
train_well many "${law[@]}" --ranks 3
same_metrics whole one
same_model whole one
same_metrics three many
same_model three many

# ---- while it waits for its first rows ----

start early data.workers=1 batch.rows=3000 eval.every=0 sample.every=0
until [ -s "$tiny/runs/early/plan.txt" ]; do sleep 0.02; done
sleep 0.1
kill -INT $process
wait $process
train_expected 0 early $? "stopped by a signal before a step was done"

# ---- what a killed process left goes when the run goes on ----

run=$tiny/runs/one
mkdir -p "$run/checkpoints/.step-9.part" "$run/model.vlmoe-part" "$run/model.vlmoe-part.aside"
touch "$run/metrics.jsonl.4711.new" "$run/samples/step-4.jsonl.12.new" \
    "$run/checkpoints/.step-9.part/rank-0.bin" "$run/model.vlmoe-part/config.json" "$run/mine.new"
train_well one "${law[@]}"
left=$(find "$run" -name '*.new' -o -name '*part*')
[ "$left" = "$run/mine.new" ] || tiny_fail "left of a killed run: $left"

tiny_end
