#!/usr/bin/env bash
# test_not_finite.sh - a model with a weight that is not a number: every command that would
# say something about it ends with 5 and one message, alone and with ranks.
#
#     test_not_finite.sh VLMOE
source tests/train/tiny/tiny.sh
tiny_setup

train_well small train.steps=1 data.hold_out=9
"$vlmoe" train recipes/quickstart.yaml run.folder="$tiny/runs" run.name=case run.log=warn \
    train.steps=1 data.sources.0.path="$tiny/data" data.sources.0.match= sample.every=0 \
    data.min_pixels=256 data.max_pixels=4096 >"$tiny/log" 2>&1 || tiny_fail "$(tail -n 3 "$tiny/log")"
for name in small case; do
    weights=$tiny/runs/$name/model/model.safetensors
    printf '\000\000\300\177' |
        dd of="$weights" bs=1 seek=$(($(stat -c %s "$weights") - 4)) conv=notrunc 2>/dev/null
done
model=$tiny/runs/small/model
image=$(ls "$tiny"/data/*.jpg | head -n 1)

# ends WHAT TEXT COMMAND...: exit code 5, the text, and nothing that looks like a result
ends() {
    local what=$1 text=$2
    shift 2
    "$vlmoe" "$@" >"$tiny/out" 2>"$tiny/err"
    expected 5 "$what" $? "$tiny/err" "$text"
    [ -s "$tiny/out" ] && tiny_fail "$what says all the same: $(head -n 3 "$tiny/out")"
}

ends generate "scores of the next token are not finite" generate "$model" --image "$image" \
    --prompt "What is this?"
for ranks in 1 3; do
    ends "eval, $ranks ranks" "loss of a row is not finite" eval "$tiny/recipe.yaml" \
        --model "$model" --ranks $ranks data.hold_out=9
    ends "eval --training, $ranks ranks" "scores of the next token are not finite" eval \
        "$tiny/recipe.yaml" --model "$model" --training --samples 2 --ranks $ranks
done
ends parity "the loss is not finite" parity "$tiny/runs/case/model" \
    tests/model/golden/parity.safetensors --out "$tiny/numbers.json"
[ -e "$tiny/numbers.json" ] && tiny_fail "parity wrote its numbers"
ends train "not finite in" train "$tiny/recipe.yaml" run.name=sick model.path="$model"
ends profile "not finite in" profile "$tiny/recipe.yaml" model.path="$model"

tiny_end
