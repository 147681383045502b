#!/usr/bin/env bash
# test_precision_slow.sh - slow: 200 steps of the quickstart computed in bf16, with masters
# and with nothing kept in f32, end within two in a hundred of f32's loss.
#
#     test_precision_slow.sh VLMOE
source tests/train/tiny/tiny.sh

declare -A types=(
    [f32]=""
    [bf16]="precision.compute=bf16"
    [lean]="precision.compute=bf16 precision.masters=false precision.moments=bf16
        precision.gradients=bf16"
)
for kind in f32 bf16 lean; do
    # shellcheck disable=SC2086
    "$vlmoe" train recipes/quickstart.yaml run.folder="$tiny/runs" run.name=$kind train.steps=200 \
        sample.every=0 checkpoint.export=false run.log=warn ${types[$kind]} >"$tiny/log" 2>&1 ||
        tiny_fail "$kind: exit code $?: $(tail -n 3 "$tiny/log")"
    last=$(metric "$tiny/runs/$kind/metrics.jsonl" loss | tail -n 10 |
        awk '{ sum += $1 } END { print sum / NR }')
    [ $kind = f32 ] && want=$last
    echo "$kind: mean loss of the last ten steps $last"
    awk -v a="$want" -v b="$last" 'BEGIN { d = (b - a) / a; exit !(a > 0 && d < 0.02 && d > -0.02) }' ||
        tiny_fail "$kind ends at $last, f32 at $want"
done
tiny_end
