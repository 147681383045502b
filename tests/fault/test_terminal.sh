#!/usr/bin/env bash
# test_terminal.sh - names and texts that would move a terminal: whatever prints them shows
# them, and none of their control characters arrives.
source tests/train/tiny/tiny.sh
tiny_setup
log=$tiny/case.log
cases=0
esc=$'\e]0;owned\a\e[2J\r\xc2\x9b31m\x9b'

# quiet WHAT TEXT COMMAND...: says TEXT, and nothing that a terminal obeys
quiet() {
    local what=$1 text=$2
    shift 2
    "$@" >"$log" 2>&1
    cases=$((cases + 1))
    LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|(?<![\xc2-\xf4\x80-\xbf])[\x80-\xbf]' "$log" &&
        tiny_fail "$what: control characters in: $(cat -v "$log")"
    holds "$log" "$text" "$what"
}

# files
bad=$tiny/data/bad$esc.png
echo "no image" >"$bad"
echo "A caption." >"${bad%.png}.txt"
quiet "a bad image's name, data check" '\x1b]0;owned\x07\x1b[2J' "$vlmoe" data check "$tiny/recipe.yaml"
quiet "a bad image's name, training" '\x1b]0;owned' \
    "$vlmoe" train "$tiny/recipe.yaml" run.name=a data.bad=fail data.shuffle=false train.steps=60
quiet "a bad image's name, left out" '\x1b]0;owned' \
    "$vlmoe" train "$tiny/recipe.yaml" run.name=b train.steps=14 checkpoint.export=false
quiet "data image" '\x1b]0;owned' "$vlmoe" data image "$bad"
rm "$bad" "${bad%.png}.txt"
quiet "a path" '\x1b]0;owned' "$vlmoe" train "$tiny/none$esc.yaml"
quiet "a command" '\x1b]0;owned' "$vlmoe" "$esc"
quiet "an option" '\x1b]0;owned' "$vlmoe" train "$tiny/recipe.yaml" "--$esc"

# recipes
printf 'optim: {"l\\er": 1}\n' >"$tiny/key.yaml"
quiet "a key" '\x1b' "$vlmoe" train "$tiny/key.yaml"
printf 'model: {path: "/none\\e[2J\\x9B"}\ndata: {sources: [{path: "%s"}]}\n' "$tiny/data" >"$tiny/value.yaml"
quiet "a value" '\x1b[2J\xc2\x9b' "$vlmoe" train "$tiny/value.yaml"
quiet "an override" '\x1b]0;owned' "$vlmoe" plan "$tiny/recipe.yaml" "optim.lr=$esc"

# texts
printf 'A \e[2Jcaption.\xc2\x9b31m\n' >"$tiny/data/1-base_420.txt"
quiet "a caption, data sample" 'x1b' "$vlmoe" data sample "$tiny/recipe.yaml" -n 60
train_well model train.steps=2 >"$log"
for text in "$tiny"/data/*.txt; do printf 'A \e[2Jcaption.\xc2\x9b31m\n' >"$text"; done
quiet "a caption, eval" '\x1b[2J' "$vlmoe" eval "$tiny/recipe.yaml" \
    --model "$tiny/runs/model/model" data.hold_out=4 sample.count=2 sample.tokens=2
cp -r "$tiny/runs/model/model" "$tiny/odd"
sed -i 's/"model_type": "qwen3_vl_moe"/"model_type": "odd\\u001b[2J\\u009b"/' "$tiny/odd/config.json"
quiet "a config" '[2J\xc2\x9b' "$vlmoe" generate "$tiny/odd" --prompt x

echo "$cases cases"
tiny_end
