#!/usr/bin/env bash
# test_ranks.sh - training on ranks that are threads: whatever the layout, one rank's
# losses, norms and samples; its state goes on in any other; a lost rank ends all.
source tests/train/tiny/tiny.sh
tiny_setup

common=(batch.rows=4 data.hold_out=5 eval.every=4 eval.rows=3 model.path="$tiny/model")

# near A B KEY...: those figures agree within 1e-5, step by step, as do the samples' order;
# norms within 1e-4, since AdamW makes whole steps of gradients that are mere rounding
near() {
    local a="$tiny/runs/$1/metrics.jsonl" b="$tiny/runs/$2/metrics.jsonl" key most
    cmp -s <(metric "$a" order) <(metric "$b" order) || tiny_fail "$1, $2: other samples"
    for key in "${@:3}"; do
        most=1e-5
        [ "$key" = grad_norm ] && most=1e-4
        paste <(metric "$a" "$key") <(metric "$b" "$key") | awk -v most=$most '
            $1 == "null" && $2 == "null" { next }
            { d = $1 - $2; if (d < 0) d = -d; s = $1 < 0 ? -$1 : $1; n++ }
            !(d <= most * s) { bad = 1 }
            END { exit bad || !n }' || tiny_fail "$1, $2: $key differs: $(paste \
            <(metric "$a" "$key") <(metric "$b" "$key") | tr '\n' ';')"
    done
}
figures=(loss aux_loss z_loss grad_norm eval_loss expert_load_max_over_mean
         supervised_tokens useful_tokens images)

train_well one train.steps=8 checkpoint.every=4 checkpoint.keep=0 "${common[@]}"

# Each line: ranks | settings.  Every one starts fresh, and goes on from the state that the
# layout before it left.
number=0 before=one
while IFS='|' read -r ranks settings; do
    name=layout$((number++))
    # shellcheck disable=SC2086
    train_well $name --ranks $ranks train.steps=8 checkpoint.every=4 checkpoint.keep=0 \
        "${common[@]}" $settings || continue
    near one $name "${figures[@]}"
    mkdir -p "$tiny/runs/$name-on/checkpoints"
    cp -r "$tiny/runs/$before/checkpoints/step-4" "$tiny/runs/$name-on/checkpoints/"
    head -n 4 "$tiny/runs/one/metrics.jsonl" >"$tiny/runs/$name-on/metrics.jsonl"
    # shellcheck disable=SC2086
    train_well $name-on --ranks $ranks train.steps=8 "${common[@]}" $settings
    near one $name-on "${figures[@]}"
    before=$name
done <<'LAYOUTS'
2 | parallel.shard=none
4 | parallel.shard=optimizer device.single_lane=true
4 | parallel.shard=gradients parallel.reduce=last parallel.replicate=2
2 | parallel.shard=parameters parallel.prefetch=2
4 | parallel.shard=parameters parallel.replicate=2 parallel.keep_weights=true
2 | parallel.tp=2
2 | parallel.cp=2
4 | parallel.ep=2 moe.dispatcher=allgather
4 | parallel.ep=2 moe.capacity=0.5
2 | parallel.pp=2 parallel.zero_bubble=true
4 | parallel.pp=2 parallel.ep=2 moe.capacity=0.25
4 | parallel.pp=2 parallel.tp=2 parallel.ep=2 memory.recompute=decoder.*
LAYOUTS
[ $number -eq 12 ] || tiny_fail "$number of 12 layouts"

# Experts without room: the step runs again with more, and says so.
train_well tight --ranks 2 train.steps=2 run.log=info parallel.ep=2 moe.capacity=0.5 \
    "${common[@]}"
holds "$tiny/tight.log" "had no room for their rows; runs again with moe.capacity 1"
train_well roomy --ranks 2 train.steps=2 parallel.ep=2 moe.capacity=1 "${common[@]}"
near roomy tight "${figures[@]}" hardware_flops
[ "$(metric "$tiny/runs/tight/metrics.jsonl" eval_loss | wc -l)" -eq 1 ] ||
    tiny_fail "tight: no held-out loss after the last step, which eval.every=4 does not divide"

# The router bias moves by all ranks' choices; answers are the same in any layout.
train_well bias train.steps=4 moe.bias_rate=0.01 sample.every=4 sample.count=2 \
    sample.tokens=6 "${common[@]}"
train_well bias2 --ranks 2 train.steps=4 moe.bias_rate=0.01 sample.every=4 \
    sample.count=2 sample.tokens=6 "${common[@]}"
near bias bias2 "${figures[@]}"
cmp "$tiny/runs/bias/samples/step-4.jsonl" "$tiny/runs/bias2/samples/step-4.jsonl" ||
    tiny_fail "other answers on two ranks"
answers=(train.steps=4 sample.every=4 sample.count=3 sample.tokens=8 batch.rows=4
    checkpoint.export=true data.hold_out=5)
train_well said "${answers[@]}"
"$vlmoe" eval "$tiny/recipe.yaml" --model "$tiny/runs/said/model" --swap-images \
    data.hold_out=5 >"$tiny/eval.txt" 2>"$tiny/error" || tiny_fail "eval: $(tail -n 2 "$tiny/error")"
while IFS='|' read -r ranks settings; do
    # shellcheck disable=SC2086
    train_well "said${ranks% }" --ranks $ranks "${answers[@]}" $settings
    cmp "$tiny/runs/said/samples/step-4.jsonl" "$tiny/runs/said${ranks% }/samples/step-4.jsonl" ||
        tiny_fail "other answers with $settings"
    # shellcheck disable=SC2086
    "$vlmoe" eval "$tiny/recipe.yaml" --model "$tiny/runs/said/model" --swap-images \
        data.hold_out=5 batch.rows=4 --ranks $ranks $settings >"$tiny/eval${ranks% }.txt" 2>"$tiny/error" ||
        tiny_fail "eval with $settings: $(tail -n 2 "$tiny/error")"
    # the same words and counts; the loss within 1e-6
    paste -d '|' <(head -n 1 "$tiny/eval.txt") <(head -n 1 "$tiny/eval${ranks% }.txt") | awk -F '|' '
        { split($1, a, " "); split($2, b, " "); d = a[2] - b[2]; a[2] = b[2] = ""
          for (i in a) if (a[i] != b[i]) bad = 1 }
        END { exit bad || NR != 1 || d > 2e-6 * b[2] + 2e-6 || d < -2e-6 }' ||
        tiny_fail "eval with $settings: $(head -n 1 "$tiny/eval.txt" "$tiny/eval${ranks% }.txt")"
    cmp <(sed '1d;$d' "$tiny/eval.txt") <(sed '1d;$d' "$tiny/eval${ranks% }.txt") ||
        tiny_fail "eval with $settings: other answers"
done <<'LAYOUTS'
2 | parallel.ep=2 moe.dispatcher=allgather
4 | parallel.cp=2 parallel.tp=2 parallel.ep=2
3 | parallel.pp=3 parallel.shard=none
8 | parallel.pp=2 parallel.cp=2 parallel.tp=2 parallel.ep=4 parallel.cp_ring=true
LAYOUTS

# What one rank of several finds ends the others at once, with its code.
cp -r "$tiny/runs/said/model" "$tiny/spoilt"
weights=$tiny/spoilt/model.safetensors
yes "$(printf '\377\377\377\177')" | tr -d '\n' | head -c 40000 |
    dd of="$weights" bs=1 seek=$(($(stat -c %s "$weights") - 60000)) conv=notrunc status=none
for layout in parallel.pp=2 parallel.dp=2 parallel.tp=2; do
    start=$SECONDS
    "$vlmoe" eval "$tiny/recipe.yaml" --model "$tiny/spoilt" data.hold_out=5 batch.rows=4 \
        --ranks 2 device.check=true $layout >"$tiny/spoilt.txt" 2>&1
    [ $? -eq 5 ] && [ $((SECONDS - start)) -lt 120 ] ||
        tiny_fail "$layout, weights not finite: $(tail -n 2 "$tiny/spoilt.txt")"
done

# refused SETTINGS TEXT RANKS: with 2, naming what would do
refused() {
    # shellcheck disable=SC2086
    train no --ranks "$3" batch.rows=4 $1
    [ $? -eq 2 ] || tiny_fail "$1 on $3 ranks: not refused with 2"
    holds "$tiny/no.log" "$2"
    [ ! -e "$tiny/runs/no" ] || tiny_fail "$1: left a run folder"
}
refused "" "nearest is 3" 3
refused "parallel.tp=3" "nearest" 3
refused "parallel.tp=2" "tp 2 is outside 1 to 1" 1
refused "parallel.ep=2" "parallel.ranks (--ranks N) says how many ranks there are" 0

# What is about experts means nothing to a model without them.
cp -r "$tiny/model" "$tiny/dense"
sed -i 's/"num_experts": 4/"num_experts": 0/' "$tiny/dense/config.json"
refused "model.path=$tiny/dense moe.bias_rate=0.1" "moe.bias_rate = 0.1, but the model has no experts" 1
refused "model.path=$tiny/dense parallel.ep=2" "parallel.ep = 2, but the model has no experts" 2
train_well dense train.steps=1 model.path="$tiny/dense"

# The recipe that a run leaves starts as many ranks again; with others it goes on and says so.
train_well again --ranks 4 train.steps=3 parallel.tp=2 run.log=info "${common[@]}"
"$vlmoe" train "$tiny/runs/again/recipe.yaml" run.name=same >"$tiny/same.log" 2>&1 ||
    tiny_fail "the run's own recipe: $(tail -n 3 "$tiny/same.log")"
same_metrics again same
holds "$tiny/runs/same/recipe.yaml" "  ranks: 4"
"$vlmoe" train "$tiny/runs/again/recipe.yaml" train.steps=4 --ranks 2 >"$tiny/same.log" 2>&1 ||
    tiny_fail "on other ranks: $(tail -n 3 "$tiny/same.log")"
holds "$tiny/same.log" "changed since step 3: parallel.ranks 4 -> 2"
train_well bare train.steps=1 parallel.tp=2 "${common[@]}"
holds "$tiny/runs/bare/recipe.yaml" "  ranks: 2"

# One rank's trouble is everybody's end, told once, with its own exit code.
train ends --ranks 4 batch.rows=4 data.sources.0.match='!*' ; code=$?
[ $code -eq 3 ] || tiny_fail "no data: exit code $code: $(tail -n 3 "$tiny/ends.log")"
[ "$(grep -c '^vlmoe: ' "$tiny/ends.log")" -eq 1 ] || tiny_fail "told more than once"
train deaf --ranks 2 batch.rows=4 checkpoint.every=2 run.folder="$tiny/recipe.yaml/runs"
code=$?
[ $code -ne 0 ] && [ $code -ne 7 ] ||
    tiny_fail "no folder: exit code $code: $(tail -n 3 "$tiny/deaf.log")"
[ "$(grep -c '^vlmoe: rank 0: ' "$tiny/deaf.log")" -eq 1 ] || tiny_fail "deaf: told otherwise"

tiny_end
