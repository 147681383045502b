#!/usr/bin/env bash
# test_not_finite.sh - no command answers, compares or measures with what is no number: exit code
# 5, one message, which says what is not finite and, where a weight is, which.
source tests/train/tiny/tiny.sh
tiny_setup
out=$tiny/out.txt
train_well run train.steps=1 optim.lr=0 checkpoint.every=0
model=$tiny/runs/run/model
file=model.safetensors

# place TENSOR: where its bytes begin in the file
header=$(od -An -tu8 -N8 "$model/$file" | tr -d ' ')
place() {
    head -c $((8 + header)) "$model/$file" | grep -aoE "\"$1\":\{[^}]*\}" |
        sed -E "s/.*\[([0-9]+),[0-9]+\]\}/$((8 + header)) \1/" | { read -r a b; echo $((a + b)); }
}
# spoil NAME TENSOR BYTES: a copy of the model with other first bytes in a tensor
spoil() {
    cp -r "$model" "$tiny/$1"
    printf "$3" | dd of="$tiny/$1/$file" bs=1 seek="$(place "$2")" conv=notrunc 2>/dev/null
    cmp -s "$model/$file" "$tiny/$1/$file" && tiny_fail "$1: nothing was spoilt"
}
names=$(head -c $((8 + header)) "$model/$file" | grep -aoE '"[a-z_.0-9]+":\{"dtype' | cut -d'"' -f2)
norm=$(grep -E 'language_model\.norm\.weight' <<<"$names")
words=$(grep -E 'lm_head' <<<"$names")
spoil nan "$norm" '\0\0\300\177'        # NaN, with and without a sign
spoil minus "$norm" '\0\0\300\377'
spoil word "$words" '\0\0\300\377'      # of one word alone
spoil huge "$norm" '\377\377\177\177'   # a number: the loss that it makes is none

# refused WHAT MODEL WEIGHT COMMAND...: exit code 5, nothing printed, one line that says why
refused() {
    local what=$1 name=$2 weight=$3
    shift 3
    timeout 60 "$vlmoe" "$@" >"$tiny/printed.txt" 2>"$out"
    expected 5 "$what of $name" $? "$out" "model $tiny/$name: " " is " "$weight"
    [ ! -s "$tiny/printed.txt" ] || tiny_fail "$what of $name printed: $(head -n 2 "$tiny/printed.txt")"
    [ "$(grep -vc '^warning: data:' "$out")" -eq 1 ] || tiny_fail "$what of $name: not one line: $(cat "$out")"
}
held=(data.hold_out=4)
image=$(ls "$tiny"/data/*.jpg | head -n 1)
for name in nan minus word; do
    weight=$norm
    [ $name = word ] && weight=$words
    refused generate $name "$weight" generate "$tiny/$name" --image "$image" --tokens 3
    refused eval $name "$weight" eval "$tiny/recipe.yaml" --model "$tiny/$name" "${held[@]}" --samples 0
    refused answers $name "the largest logit of a token is nan" eval "$tiny/recipe.yaml" \
        --model "$tiny/$name" --training
done
refused eval huge "though each weight is a number" eval "$tiny/recipe.yaml" --model "$tiny/huge" \
    "${held[@]}" --samples 0
for layout in "parallel.dp=2" "parallel.tp=2" "parallel.pp=2" "parallel.cp=2"; do
    for name in nan word; do
        weight=$norm
        [ $name = word ] && weight=$words
        refused "eval $layout" $name "$weight" eval "$tiny/recipe.yaml" --model "$tiny/$name" \
            "${held[@]}" --samples 0 --ranks 2 $layout
        refused "answers $layout" $name "$weight" eval "$tiny/recipe.yaml" --model "$tiny/$name" \
            --training --ranks 2 $layout
    done
done
# ---- a step that updates nothing is not what a step costs; a run ends with its samples ----

"$vlmoe" profile "$tiny/recipe.yaml" --steps 1 --warmup 0 model.path="$tiny/nan" >"$out" 2>&1
expected 5 profile $? "$out" "the gradients of step 1 are not finite"
train sick model.path="$tiny/nan"
train_expected 5 sick $? "gradients were not finite in 4 steps in a row"
train end model.path="$tiny/nan" train.steps=1 sample.every=1 sample.count=1 checkpoint.export=false
train_expected 5 end $? "the largest logit of a token is nan"
train held model.path="$tiny/nan" train.steps=1 eval.every=1 "${held[@]}" checkpoint.export=false
train_expected 5 held $? "the loss is nan"
[ -d "$tiny/runs/held/checkpoints/step-1" ] || tiny_fail "the state before the evaluation is lost"
case=tests/model/golden/parity.safetensors
"$vlmoe" parity "$model" $case >"$out" 2>&1
expected 3 "parity of other patches" $? "$out" "1536 columns, patches of the model have 384 values"
train_well quick model.path=recipes/quickstart train.steps=1 optim.lr=0 checkpoint.every=0
model=$tiny/runs/quick/model
header=$(od -An -tu8 -N8 "$model/$file" | tr -d ' ')
spoil parity_nan "$norm" '\0\0\300\377'
spoil parity_word "$words" '\0\0\300\377'
for name in parity_nan parity_word; do
    "$vlmoe" parity "$tiny/$name" $case --out "$tiny/parity.json" >"$out" 2>&1
    expected 5 "$name" $? "$out" "model $tiny/$name: the loss is "
    [ ! -e "$tiny/parity.json" ] || tiny_fail "$name wrote something"
done
tiny_end
