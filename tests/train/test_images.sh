#!/usr/bin/env bash
# test_images.sh - images shared out over ranks: one rank's losses, norms and samples, less
# waiting for the fullest rank, and more room when it is too little.
source tests/train/tiny/tiny.sh
tiny_setup

law=(batch.rows=4 batch.tokens=128 batch.patches=384 train.steps=6 checkpoint.export=false
    optim.epsilon=1e-4 data.sources.0.name=tiny data.max_pixels=16384 data.shuffle=true)

# near NAME KEY...: one rank's figures within 1e-5
near() {
    local key
    for key in "${@:2}"; do
        paste <(metric "$tiny/runs/one/metrics.jsonl" "$key") \
            <(metric "$tiny/runs/$1/metrics.jsonl" "$key") | awk '
            { d = $1 - $2; if (d < 0) d = -d; s = $1 < 0 ? -$1 : $1; n++ }
            !(d <= 1e-5 * s) { bad = 1 }
            END { exit bad || n != 6 }' || tiny_fail "$1: $key differs"
    done
}
figures=(loss aux_loss grad_norm images patches useful_tokens model_flops)

# total NAME KEY: its sum over the steps
total() {
    metric "$tiny/runs/$1/metrics.jsonl" "$2" | awk '{ s += $1 } END { print s }'
}

# compares X OP Y WHAT
compares() {
    awk -v a="$1" -v b="$3" "BEGIN { exit !(a $2 b) }" || tiny_fail "not $1 $2 $3: $4"
}

train_well one "${law[@]}"
compares "$(total one vision_load_max_over_mean)" == 6 "one rank is the mean"

# name | ranks | settings
while IFS='|' read -r name ranks settings; do
    # shellcheck disable=SC2086
    train_well $name --ranks $ranks "${law[@]}" run.log=info $settings || continue
    near $name "${figures[@]}"
    echo "$name: $(total $name vision_load_max_over_mean) of $(total $name \
        vision_load_unbalanced), no room $(total $name vision_crowded)"
done <<'RUNS'
rows      | 4 | vision.balance=none
images    | 4 | vision.balance=images
shared    | 4 | parallel.cp=2 vision.balance=none
both      | 4 | parallel.cp=2
small     | 4 | parallel.cp=2 vision.capacity=0.05
stages    | 8 | parallel.pp=2 parallel.cp=2 parallel.stages=V,3H vision.capacity=0.05
RUNS

# What would be without balance is what is without, and balance is better.
for pair in "rows images" "shared both"; do
    read -r without with <<<"$pair"
    compares "$(total $without vision_load_max_over_mean)" == \
        "$(total $with vision_load_unbalanced)" "$pair"
    compares "$(total $with vision_load_max_over_mean)" "<" \
        "$(total $without vision_load_max_over_mean)" "$pair"
done
# Every cp rank of a row encodes it whole: no less than twice an even share.
compares "$(total shared vision_load_max_over_mean)" ">=" 12 "cp ranks repeat each other"
compares "$(total both vision_load_max_over_mean)" "<=" 12 "cp ranks share"

for name in small stages; do
    holds "$tiny/$name.log" "images found no room to be encoded; runs with vision.capacity"
    compares "$(total $name vision_crowded)" == 0 "$name: more room, so none stayed"
done
grew=$(grep -c "found no room" "$tiny/small.log")
[ "$grew" -le 3 ] || tiny_fail "small: grew $grew times"
# What was evaluated and generated meanwhile does not depend on it.
train_well alone "${law[@]}" data.hold_out=5 eval.every=3 eval.rows=3
train_well spread --ranks 4 "${law[@]}" data.hold_out=5 eval.every=3 eval.rows=3 \
    parallel.cp=2
paste <(metric "$tiny/runs/alone/metrics.jsonl" eval_loss) \
    <(metric "$tiny/runs/spread/metrics.jsonl" eval_loss) | awk '
    $1 != "" { d = $1 - $2; if (d < 0) d = -d; if (!(d <= 1e-5 * $1)) bad = 1; n++ }
    END { exit bad || n != 2 }' || tiny_fail "eval_loss differs"
train spread-bad --ranks 2 "${law[@]}" vision.balance=rows && tiny_fail "an unknown choice"
holds "$tiny/spread-bad.log" "vision.balance"
tiny_end
