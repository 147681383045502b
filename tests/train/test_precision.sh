#!/usr/bin/env bash
# test_precision.sh - runs computed in bf16, with and without masters: they end near f32,
# resume to the bit, do not depend on lanes, threads or recompute, go on in other types,
# on other ranks; and plan says what they compute in.
#
#     test_precision.sh VLMOE
source tests/train/tiny/tiny.sh
tiny_setup

law=(train.steps=8 checkpoint.every=3 eval.every=4 eval.rows=2 data.hold_out=9 sample.every=4
    sample.count=2 sample.tokens=3)
bf16=(precision.compute=bf16)
lean=(precision.compute=bf16 precision.masters=false precision.moments=bf16
    precision.gradients=bf16)

losses() {                              # of a run's steps
    metric "$tiny/runs/$1/metrics.jsonl" loss
}

# near A B: do the last losses of two runs agree within two in a hundred?
near() {
    awk -v a="$(losses "$1" | tail -n 1)" -v b="$(losses "$2" | tail -n 1)" \
        'BEGIN { d = (a - b) / a; exit !(a > 0 && d < 0.02 && d > -0.02) }' ||
        tiny_fail "$1 ends at $(losses "$1" | tail -n 1), $2 at $(losses "$2" | tail -n 1)"
}

# back FROM TO: a copy of a run as it was after its state of step 6
back() {
    cp -r "$tiny/runs/$1" "$tiny/runs/$2" &&
        rm -r "$tiny/runs/$2/checkpoints/step-8" "$tiny/runs/$2/model" &&
        [ -d "$tiny/runs/$2/checkpoints/step-6" ] || tiny_fail "$1 has no state of step 6"
}

train_well f32 "${law[@]}"
for kind in bf16 lean; do
    declare -n types=$kind
    train_well $kind "${law[@]}" "${types[@]}"
    near f32 $kind
    cmp -s <(losses f32) <(losses $kind) && tiny_fail "$kind computes in f32"
    back $kind $kind-again
    train_well $kind-again "${law[@]}" "${types[@]}"
    same_metrics $kind $kind-again
    same_model $kind $kind-again
    train_well $kind-lanes "${law[@]}" "${types[@]}" device.single_lane=true device.threads=2 \
        memory.recompute='decoder.*'
    same_model $kind $kind-lanes
    train_well $kind-ranks "${law[@]}" "${types[@]}" --ranks 3
    near $kind $kind-ranks

    back f32 f32-$kind                  # a state is of no type
    train_well f32-$kind "${law[@]}" "${types[@]}"
    near f32 f32-$kind
    holds "$tiny/f32-$kind.log" "precision.compute"
    back $kind $kind-f32
    train_well $kind-f32 "${law[@]}" --ranks 3
    near f32 $kind-f32
done
cmp -s "$tiny/runs/bf16/model/model.safetensors" "$tiny/runs/lean/model/model.safetensors" &&
    tiny_fail "masters change nothing"

"$vlmoe" plan "$tiny/recipe.yaml" "${lean[@]}" >"$tiny/plan.txt" ||
    tiny_fail "plan: exit code $?"
holds "$tiny/plan.txt" "types: bf16 activations"
holds "$tiny/plan.txt" "no masters, bf16 moments, bf16 gradients"
"$vlmoe" plan "$tiny/recipe.yaml" >"$tiny/plan.txt" || tiny_fail "plan: exit code $?"
holds "$tiny/plan.txt" "types: f32 throughout"

tiny_end
