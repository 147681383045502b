#!/usr/bin/env bash
# test_folders.sh - model folders as the world has them: what cannot be read is found at the
# start, not after the last step; what leaves the folder stays out of an export; what is no
# model folder is recognised.
source tests/train/tiny/tiny.sh
tiny_setup
rm -r "$tiny/data"
tiny_data "$tiny/data" 6
log=$tiny/case.log
train_well whole train.steps=1
good=$tiny/runs/whole/model

fresh() { rm -rf "$tiny/m"; cp -r "$good" "$tiny/m"; }
# at_start TEXT...: training from $tiny/m fails before it makes a run
at_start() {
    rm -rf "$tiny/runs/case"
    "$vlmoe" train "$tiny/recipe.yaml" model.path="$tiny/m" run.name=case >"$log" 2>&1
    expected 4 "$1" $? "$log" "$@"
    [ ! -e "$tiny/runs/case" ] || tiny_fail "$1: found only after the run had begun"
}
# all_say TEXT...: these commands refuse $tiny/m so
all_say() {
    local command
    for command in "generate $tiny/m --prompt x" "convert $tiny/m $tiny/copy" \
        "plan $tiny/recipe.yaml model.path=$tiny/m" "eval $tiny/recipe.yaml --model $tiny/m" \
        "parity $tiny/m tests/model/golden/parity.safetensors"; do
        # shellcheck disable=SC2086
        "$vlmoe" $command >"$log" 2>&1
        expected 4 "${command%% *}" $? "$log" "$@"
        rm -rf "$tiny/copy"
    done
    at_start "$@"
}

# ---- links that dangle, pointers of Git LFS, what is no file ----

for name in model.safetensors config.json preprocessor_config.json tokenizer_config.json; do
    fresh
    rm -f "$tiny/m/$name"
    ln -s ../gone/file "$tiny/m/$name"
    all_say "$tiny/m/$name is a link to ../gone/file, which is not there"
    rm "$tiny/m/$name"
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' >"$tiny/m/$name"
    all_say "$tiny/m/$name is a Git LFS pointer, not the file itself" "git lfs pull"
done
fresh
ln -s /nowhere/at/all "$tiny/m/README.md"       # an export would want it, nobody else does
at_start "README.md is a link to /nowhere/at/all"
"$vlmoe" convert "$tiny/m" "$tiny/copy" >"$log" 2>&1
expected 4 "convert, dangling README.md" $? "$log" "README.md is a link to"
"$vlmoe" generate "$tiny/m" --prompt x --tokens 1 >"$log" 2>&1
expected 0 "generate, dangling README.md" $? "$log"
"$vlmoe" train "$tiny/recipe.yaml" model.path="$tiny/m" run.name=case train.steps=1 \
    checkpoint.export=false >"$log" 2>&1
expected 0 "no export, dangling README.md" $? "$log"
fresh
mkfifo "$tiny/m/notes"
at_start "$tiny/m/notes"
if [ "$(id -u)" -ne 0 ]; then                   # root reads everything
    fresh
    echo secret >"$tiny/m/notes"
    chmod 0 "$tiny/m/notes"
    at_start "$tiny/m/notes: Permission denied"
fi
fresh
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' >"$tiny/m/plot.png"
"$vlmoe" convert "$tiny/m" "$tiny/copy" >"$log" 2>&1
expected 0 "a pointer that nobody reads" $? "$log"
cmp "$tiny/m/plot.png" "$tiny/copy/plot.png" || tiny_fail "plot.png was not carried"
rm -rf "$tiny/copy"

# ---- links out of the folder ----

fresh
echo secret >"$tiny/secret"
echo inside >"$tiny/m/inner.txt"
ln -s "$tiny/secret" "$tiny/m/letter.txt"
ln -s inner.txt "$tiny/m/other.txt"
mv "$tiny/m/config.json" "$tiny/config.json"
ln -s ../config.json "$tiny/m/config.json"
"$vlmoe" convert "$tiny/m" "$tiny/copy" >"$log" 2>&1
expected 0 "links out of the folder" $? "$log" "not followed into an export" "letter.txt"
[ ! -e "$tiny/copy/letter.txt" ] || tiny_fail "a file from outside went into an export"
[ "$(cat "$tiny/copy/other.txt")" = inside ] || tiny_fail "a link within the folder was lost"
[ ! -L "$tiny/copy/other.txt" ] || tiny_fail "an export with a link"
cmp "$tiny/config.json" "$tiny/copy/config.json" || tiny_fail "the config was lost"
rm -rf "$tiny/copy" "$tiny/runs/case"
"$vlmoe" train "$tiny/recipe.yaml" model.path="$tiny/m" run.name=case train.steps=1 >"$log" 2>&1
expected 0 "training with links" $? "$log" "letter.txt"
[ ! -e "$tiny/runs/case/model/letter.txt" ] || tiny_fail "a run exported a file from outside"

# the hub's cache is made of links into its own blobs
hub=$tiny/models--a--b
mkdir -p "$hub/blobs" "$hub/snapshots/1f"
for file in "$good"/*; do
    mv "$(cp "$file" "$hub/blobs/" && echo "$hub/blobs/${file##*/}")" "$hub/blobs/0-${file##*/}"
    ln -s "../../blobs/0-${file##*/}" "$hub/snapshots/1f/${file##*/}"
done
"$vlmoe" convert "$hub/snapshots/1f" "$tiny/copy" >"$log" 2>&1
expected 0 "the hub's cache" $? "$log"
diff -r "$good" "$tiny/copy" >"$log" || tiny_fail "from the hub's cache: $(head -3 "$log")"
grep -q "not followed" "$log" && tiny_fail "the hub's links were taken for strangers"
rm -rf "$tiny/m" "$tiny/copy"
ln -s "$hub" "$tiny/m"
all_say "is an entry of the hub's cache; its model is $tiny/m/snapshots/1f"

# ---- another chat template than ours ----

# template NAME TEXT WANT: what a file of this name makes of training; WANT is in a warning, or
# empty where nothing is to be said
template() {
    fresh
    rm -f "$tiny/m"/chat_template* "$tiny/m/tokenizer_config.json"
    printf '%s' "$2" >"$tiny/m/$1"
    for choice in auto qwen3-vl folder; do
        rm -rf "$tiny/runs/case"
        "$vlmoe" train "$tiny/recipe.yaml" model.path="$tiny/m" run.name=case train.steps=1 \
            checkpoint.export=false model.template=$choice >"$log" 2>&1
        code=$?
        if [ -z "$3" ] || [ $choice = qwen3-vl ]; then
            expected 0 "template $1 $choice" $code "$log"
            grep -q "chat template" "$log" && tiny_fail "$1 $choice: $(cat "$log")"
        elif [ $choice = auto ]; then
            expected 0 "template $1 auto" $code "$log" "warning" "$1 is not Qwen3-VL's" "$3"
        else
            expected 2 "template $1 folder" $code "$log" "$1 is not Qwen3-VL's" "$3"
        fi
    done
}
ours='<|im_start|><|im_end|><|image_pad|>'
template chat_template.jinja "$(cat recipes/quickstart/chat_template.jinja)" ""
template chat_template.jinja '{{ messages }}' "no <|im_start|>"
template chat_template.jinja "$ours<think>" "<think>"
template chat_template.json "{\"chat_template\": \"$ours You are a helpful assistant.\"}" "You are a helpful"
template tokenizer_config.json '{"chat_template": "[INST]", "x": NaN}' "no <|im_start|>"
template tokenizer_config.json "{\"chat_template\": [{\"name\": \"tool\", \"template\": \"x\"},
    {\"name\": \"default\", \"template\": \"$ours\"}]}" ""
template tokenizer_config.json '{"model_max_length": 1e999}' ""
rm -rf "$tiny/m"

# ---- what is no model folder ----

ln -s "$tiny/runs/whole/checkpoints/step-1" "$tiny/m"
at_start "is a training state, not a model folder; vlmoe convert $tiny/m DIR"
rm "$tiny/m"
ln -s "$tiny/runs/whole/checkpoints" "$tiny/m"
all_say "holds training states" "vlmoe convert $tiny/m/step-1 DIR"
rm "$tiny/m"
mkdir "$tiny/m"
all_say "has no config.json; expected a model folder"
"$vlmoe" generate Qwen/Qwen3-VL-30B-A3B-Instruct --prompt x >"$log" 2>&1
expected 4 "a name of the hub" $? "$log" "nothing is downloaded" \
    "vlmoe: model: Qwen/Qwen3-VL-30B-A3B-Instruct looks like a name on the Hugging Face hub" \
    "hf download Qwen/Qwen3-VL-30B-A3B-Instruct --local-dir DIR"
for address in https://huggingface.co/Qwen/Qwen3-VL hf://Qwen/Qwen3-VL@main \
    "https://huggingface.co/Qwen/Qwen3-VL/tree/main?x=1" hf.co/Qwen/Qwen3-VL/; do
    for command in "generate $address --prompt x" "convert $address $tiny/copy" \
        "plan $tiny/recipe.yaml model.path=$address" "train $tiny/recipe.yaml model.path=$address" \
        "eval $tiny/recipe.yaml --model $address" "parity $address tests/model/golden/parity.safetensors"; do
        # shellcheck disable=SC2086
        "$vlmoe" $command >"$log" 2>&1
        expected 4 "$command" $? "$log" "vlmoe: model: $address is an address on the Hugging Face hub" \
            'hf download Qwen/Qwen3-VL --local-dir DIR'
        [ "$(wc -l <"$log")" -eq 1 ] || tiny_fail "$command: more than one line: $(cat "$log")"
    done
done
"$vlmoe" generate tests/nothing --prompt x >"$log" 2>&1
expected 4 "a path that looks like one" $? "$log" "no such folder"
tiny_end
