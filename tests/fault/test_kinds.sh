#!/usr/bin/env bash
# test_kinds.sh - a named pipe, a device or a folder wherever a file is expected: refused
# at once with a message that names it, and it stays what it was.
source tests/train/tiny/tiny.sh
tiny_setup
rm -r "$tiny/data"
tiny_data "$tiny/data" 6
log=$tiny/case.log
cases=0

train_well whole train.steps=2 checkpoint.every=1
good=$tiny/runs/whole/model
"$vlmoe" data pack "$tiny/data" "$tiny/tar" >"$log" 2>&1 || tiny_fail "pack: $(cat "$log")"
shard=$(echo "$tiny"/tar/*.tar)
json=$tiny/data.jsonl
for file in "$tiny"/data/*.jpg; do
    echo "{\"messages\":[{\"role\":\"user\",\"content\":\"<image>What?\"},{\"role\":\"assistant\",\"content\":\"A picture.\"}],\"images\":[\"$file\"]}"
done >"$json"

# odd KIND PATH: what was there goes to PATH.good, PATH becomes something else
odd() {
    mv "$2" "$2.good" 2>/dev/null
    case $1 in
    pipe) mkfifo "$2" ;;
    device) ln -s /dev/zero "$2" ;;
    folder) mkdir "$2" ;;
    esac
}
well() { rm -rf "$1"; [ ! -e "$1.good" ] || mv "$1.good" "$1"; }

# refused CODE PATH ARGUMENT...: the command with each kind at PATH
refused() {
    local want=$1 path=$2 kind code
    shift 2
    for kind in pipe device folder; do
        odd $kind "$path"
        rm -rf "$tiny/runs/case"
        timeout 20 "$vlmoe" "$@" >"$log" 2>&1
        code=$?
        expected "$want" "$kind as ${path#"$tiny"/}" $code "$log" "${path##*/}"
        [ -f "$path" ] && [ ! -L "$path" ] && tiny_fail "$kind $path became a file"
        well "$path"
        cases=$((cases + 1))
    done
}

short=(run.name=case train.steps=1 checkpoint.export=false)
train=(train "$tiny/recipe.yaml" "${short[@]}")

# recipes and tables
refused 2 "$tiny/recipe.yaml" "${train[@]}"
cp "$tiny/recipe.yaml" "$tiny/base.yaml"
echo "include: base.yaml" >"$tiny/top.yaml"
refused 2 "$tiny/base.yaml" train "$tiny/top.yaml" "${short[@]}"
cp recipes/hardware/"$(ls recipes/hardware | head -n 1)" "$tiny/table.yaml"
refused 2 "$tiny/table.yaml" plan "$tiny/recipe.yaml" plan.hardware="$tiny/table.yaml"

# data
picture=$(ls "$tiny"/data/*.jpg | head -n 1)
folder=("${train[@]}" data.bad=fail data.shuffle=false train.steps=3)
for kind in pipe device; do             # a folder is looked into for more images
    odd $kind "$picture"
    rm -rf "$tiny/runs/case"
    timeout 20 "$vlmoe" "${folder[@]}" >"$log" 2>&1
    expected 3 "$kind as image" $? "$log" "${picture##*/}" "not a regular file"
    timeout 20 "$vlmoe" data image "$picture" >"$log" 2>&1
    expected 3 "data image of a $kind" $? "$log" "${picture##*/}" "not a regular file"
    rm -rf "$tiny/runs/case"
    timeout 20 "$vlmoe" train "$tiny/recipe.yaml" "${short[@]}" data.hold_out=0 >"$log" 2>&1
    expected 0 "$kind as image, skipped" $? "$log" "${picture##*/}"
    well "$picture"
done
caption=${picture%.jpg}.txt
refused 3 "$caption" "${folder[@]}"
refused 3 "$json" "${train[@]}" data.sources.0.path="$json" data.sources.0.format=openai
refused 3 "$shard" "${train[@]}" data.sources.0.path="$shard" data.sources.0.format=webdataset
rm -f "$shard.idx"
for kind in pipe device; do             # an index is a convenience: the run goes on
    odd $kind "$shard.idx"
    rm -rf "$tiny/runs/case"
    timeout 20 "$vlmoe" "${train[@]}" data.sources.0.path="$shard" \
        data.sources.0.format=webdataset >"$log" 2>&1
    expected 0 "$kind as index" $? "$log" "${shard##*/}.idx"
    [ -f "$shard.idx" ] && [ ! -L "$shard.idx" ] && tiny_fail "the $kind became an index"
    well "$shard.idx"
done

# models
for name in config.json tokenizer.json; do
    refused 4 "$good/$name" generate "$good" --prompt x --tokens 1
done
refused 4 "$good/model.safetensors" generate "$good" --prompt x --tokens 1
mv "$good/model.safetensors" "$tiny/model.safetensors"
for kind in pipe device; do             # a folder of the name of an optional file is none
    odd $kind "$good/model.safetensors.index.json"
    timeout 20 "$vlmoe" generate "$good" --prompt x --tokens 1 >"$log" 2>&1
    expected 4 "$kind as index.json" $? "$log" model.safetensors.index.json
    well "$good/model.safetensors.index.json"
    odd $kind "$good/preprocessor_config.json"
    timeout 20 "$vlmoe" generate "$good" --prompt x --tokens 1 >"$log" 2>&1
    expected 4 "$kind as preprocessor_config.json" $? "$log" preprocessor_config.json
    well "$good/preprocessor_config.json"
done
mv "$tiny/model.safetensors" "$good/model.safetensors"
refused 3 "$tiny/case.safetensors" parity "$good" "$tiny/case.safetensors"

# runs
run=$tiny/runs/whole
again=(train "$tiny/recipe.yaml" run.name=whole train.steps=3 checkpoint.every=1)
refused 2 "$run/lock" "${again[@]}"
ln -s "$tiny/recipe.yaml" "$run/lock.link"
mv "$run/lock" "$tiny/lock"
mv "$run/lock.link" "$run/lock"
cp "$tiny/recipe.yaml" "$tiny/before.yaml"
timeout 20 "$vlmoe" "${again[@]}" >"$log" 2>&1
expected 2 "link as lock" $? "$log" "lock" "a symbolic link"
cmp "$tiny/recipe.yaml" "$tiny/before.yaml" || tiny_fail "a lock wrote through a link"
mv "$tiny/lock" "$run/lock"
for name in metrics.jsonl recipe.yaml; do
    cp -r "$run" "$tiny/kept"
    refused 2 "$run/$name" "${again[@]}"
    rm -rf "$run"
    mv "$tiny/kept" "$run"
done
refused 2 "$run/metrics.jsonl" report "$run"
for name in manifest.json rank-0.bin; do    # the older state is gone on from
    for kind in pipe device folder; do
        cp -r "$run" "$tiny/kept"
        odd $kind "$run/checkpoints/step-2/$name"
        timeout 20 "$vlmoe" "${again[@]}" >"$log" 2>&1
        expected 0 "$kind as $name" $? "$log" "step-2" "not used"
        rm -rf "$run"
        mv "$tiny/kept" "$run"
        cases=$((cases + 1))
    done
done

# results take no device's place
for out in /dev/null /dev/full; do
    "$vlmoe" data image "$picture" --out $out >"$log" 2>&1
    expected 2 "--out $out" $? "$log" "$out: it is a device"
    [ -c $out ] || tiny_fail "$out is no device any more"
done

echo "$cases cases"
[ $cases -ge 40 ] || tiny_fail "only $cases cases ran"
tiny_end
