#!/usr/bin/env bash
# test_resume.sh - a run that is killed again and again equals one that never stopped.
#
#     test_resume.sh VLMOE [KILLS] [RANKS] [SEED]
#
# Kills fall at random moments: by the clock, while a training state is being written, a
# little after a step.  Every restart has other workers, lanes and threads, and writes its
# states beside the training or between steps.
source tests/train/tiny/tiny.sh

kills=${2:-6}
ranks=${3:-1}
seed=${4:-$((SRANDOM % 30000))}
RANDOM=$seed
echo "seed $seed, $kills kills, $ranks ranks"

tiny_setup
head -c 300 tests/data/image/base_444.jpg >"$tiny/data/broken.jpg"
echo "half a picture" >"$tiny/data/broken.txt"
law=(--ranks "$ranks" train.steps=$((12 + 2 * kills)) checkpoint.every=3 data.hold_out=9 eval.every=5
    eval.rows=2 sample.every=4 sample.count=2 sample.tokens=3 moe.bias_rate=0.01 memory.recompute=decoder.act)
variant=(
    "data.workers=0 checkpoint.async=false"
    "data.workers=1"
    "data.workers=3 data.ahead=1"
    "device.single_lane=true"
    "device.threads=2 checkpoint.async=false"
    "data.workers=3 device.threads=2 device.single_lane=true"
)

train_well whole "${law[@]}"
[ "$(metric "$tiny/runs/whole/metrics.jsonl" epoch | tail -n 1)" -ge 3 ] ||
    tiny_fail "the run is shorter than two epochs"
[ "$(metric "$tiny/runs/whole/metrics.jsonl" epoch | head -n 1)" -eq 1 ] ||
    tiny_fail "the first step is not of epoch 1"
[ "$(metric "$tiny/runs/whole/metrics.jsonl" bad_samples | tail -n 1)" -ge 2 ] ||
    tiny_fail "the broken image was not met in every epoch"

for i in "${!variant[@]}"; do
    # shellcheck disable=SC2086
    train_well "v$i" "${law[@]}" ${variant[i]}
    same_metrics whole "v$i"
    same_model whole "v$i"
done

lines() {                           # of a run's metrics, so far
    [ -f "$tiny/runs/$1/metrics.jsonl" ] && wc -l <"$tiny/runs/$1/metrics.jsonl" || echo 0
}

# Waits for a moment in which to kill `process`, which trains run $1.
moment() {
    local until
    case $((RANDOM % 3)) in
    0) sleep "0.$(printf %03d $((RANDOM % 400)))" ;;
    1) while kill -0 "$process" 2>/dev/null &&
           ! compgen -G "$tiny/runs/$1/checkpoints/.step-*" >/dev/null; do :; done ;;
    2) until=$(($(lines "$1") + 1 + RANDOM % 4))
       while kill -0 "$process" 2>/dev/null && [ "$(lines "$1")" -lt $until ]; do :; done
       sleep "0.00$((RANDOM % 10))" ;;
    esac
}

number=0 killed=0 torn=0 kept=0
while [ "$killed" -lt "$kills" ]; do
    name=run$number
    # shellcheck disable=SC2086
    "$vlmoe" train "$tiny/recipe.yaml" run.name="$name" "${law[@]}" \
        ${variant[RANDOM % ${#variant[@]}]} >>"$tiny/$name.log" 2>&1 &
    process=$!
    if [ "$killed" -eq 0 ]; then        # one kill at least finds a state to go on from
        while kill -0 $process 2>/dev/null &&
              ! compgen -G "$tiny/runs/$name/checkpoints/step-*" >/dev/null; do :; done
    else
        moment "$name"
    fi
    kill -KILL $process 2>/dev/null
    wait $process 2>/dev/null
    code=$?
    compgen -G "$tiny/runs/$name/checkpoints/.step-*" >/dev/null && torn=$((torn + 1))
    if [ $code -eq 137 ]; then
        compgen -G "$tiny/runs/$name/checkpoints/step-*" >/dev/null && kept=$((kept + 1))
        killed=$((killed + 1))
    elif [ $code -eq 0 ]; then      # it was done before it could be killed
        number=$((number + 1))
    else
        tiny_fail "$name: exit code $code: $(tail -n 3 "$tiny/$name.log")"
        break
    fi
done
for ((i = 0; i <= number; i++)); do
    train_well "run$i" "${law[@]}"
    same_metrics whole "run$i"
    same_model whole "run$i"
done
compgen -G "$tiny/runs/run*/checkpoints/.step-*" >/dev/null &&
    tiny_fail "a torn training state was left behind"
[ "$kept" -ge 1 ] || tiny_fail "no kill left a state: nothing was resumed"
echo "$killed kills, $kept left a state, $torn of them while a state was written, $((number + 1)) runs"

# SIGTERM and SIGINT: the step is finished, the state saved, the next run goes on.
for signal in TERM INT; do
    name=$signal
    "$vlmoe" train "$tiny/recipe.yaml" --ranks "$ranks" run.name=$name run.log=info \
        train.steps=1000000 checkpoint.every=1 optim.schedule=constant data.workers=2 >"$tiny/$name.log" 2>&1 &
    process=$!
    while kill -0 $process 2>/dev/null && [ "$(lines $name)" -lt 3 ]; do :; done
    kill -$signal $process
    wait $process
    code=$?
    steps=$(lines $name)
    [ $code -eq 0 ] || tiny_fail "SIG$signal: exit code $code"
    holds "$tiny/$name.log" "stopped by a signal after step $steps"
    [ "$(ls -v "$tiny/runs/$name/checkpoints" | tail -n 1)" = "step-$steps" ] ||
        tiny_fail "SIG$signal: states: $(ls "$tiny/runs/$name/checkpoints"), metrics: $steps"
    [ -d "$tiny/runs/$name/model" ] && tiny_fail "SIG$signal: an unfinished model was exported"
    more=(--ranks "$ranks" train.steps=$((steps + 4)) optim.schedule=constant)
    train_well $name run.log=info "${more[@]}"
    holds "$tiny/$name.log" "resumed from $tiny/runs/$name/checkpoints/step-$steps"
    train_well "whole$name" "${more[@]}"
    same_metrics "whole$name" $name
    same_model "whole$name" $name
done

# A run that is done stays as it is.
before=$(cd "$tiny/runs/whole" && cat metrics.jsonl model/model.safetensors | cksum)
train_well whole "${law[@]}"
[ "$(cd "$tiny/runs/whole" && cat metrics.jsonl model/model.safetensors | cksum)" = "$before" ] ||
    tiny_fail "running a finished run again changed it"

tiny_end
