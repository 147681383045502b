#!/usr/bin/env bash
# test_malformed.sh - a table of wrong inputs: each is refused with its exit code and a
# message that says where and what, or, where it is merely odd, trained on.  (An empty
# text in the table asks for nothing.)
#
# Exit codes: 2 usage or recipe, 3 data, 4 checkpoint, 6 does not fit.
source tests/train/tiny/tiny.sh
tiny_setup
rm -r "$tiny/data"
tiny_data "$tiny/data" 6
log=$tiny/case.log
cases=0

# The verdict on a finished command: code, then texts its output must hold.  A crash or a
# sanitizer's report never passes: its code or its text is not the expected one.
verdict() {
    local what=$1 code=$2 want=$3 text
    shift 3
    cases=$((cases + 1))
    [ "$code" -eq "$want" ] ||
        tiny_fail "$what: exit code $code, expected $want: $(tail -n 5 "$log")"
    for text; do
        [ -z "$text" ] || grep -qF -- "$text" "$log" ||
            tiny_fail "$what: no '$text' in: $(tail -n 5 "$log")"
    done
    grep -qE 'Sanitizer|runtime error|^bug:' "$log" && tiny_fail "$what: $(cat "$log")"
}

# command CODE TEXT ARGUMENT...: the program itself
command_case() {
    local code=$1 text=$2
    shift 2
    "$vlmoe" "$@" >"$log" 2>&1
    verdict "vlmoe $*" $? "$code" "$text"
}

# one step on this recipe, in a run folder of its own
step() {
    rm -rf "$tiny/runs/case"
    "$vlmoe" train "$1" run.folder="$tiny/runs" run.name=case train.steps=1 \
        checkpoint.export=false "${@:2}" >"$log" 2>&1
}

# refused CODE WHAT TEXT TEXT [section.key=value ...]: training says no
refused() {
    step "$tiny/recipe.yaml" "${@:5}"
    verdict "$2" $? "$1" "$3" "$4"
}

# trains WHAT [section.key=value ...]
trains() {
    step "$tiny/recipe.yaml" "${@:2}"
    verdict "$1" $? 0
}

# ---- images: one file among good ones, made by the function in $2 ----

# image_case CODE FILE TEXT: $tiny/make/FILE under data.bad=fail; under data.bad=skip a
# bad one is left out and counted
image_case() {
    local code=$1 file=$2 text=${3:-}
    rm -rf "$tiny/pictures"
    mkdir "$tiny/pictures"
    cp "$tiny/data"/[123]-* "$tiny/pictures"
    cp "$tiny/make/$file" "$tiny/pictures/odd.${file##*.}"
    echo "An odd picture." >"$tiny/pictures/odd.txt"
    local data=(data.sources.0.path="$tiny/pictures" data.shuffle=false batch.rows=1
        batch.samples=2 data.hold_out=0)
    step "$tiny/recipe.yaml" "${data[@]}" data.bad=fail train.steps=4
    local got=$?
    if [ "$code" -eq 0 ]; then
        verdict "image $file" $got 0
        [ "$(metric "$tiny/runs/case/metrics.jsonl" images | awk '{ n += $1 } END { print n }')" = 8 ] ||
            tiny_fail "image $file: not all 4 images were trained on twice"
        return
    fi
    verdict "image $file" $got "$code" "$tiny/pictures/odd.${file##*.}" "$text"
    step "$tiny/recipe.yaml" "${data[@]}" data.bad=skip train.steps=4
    verdict "image $file skipped" $? 0
    [ "$(metric "$tiny/runs/case/metrics.jsonl" bad_samples | tail -n 1)" -ge 1 ] ||
        tiny_fail "image $file: skipped without being counted"
}

made=$tiny/make
mkdir "$made"
picture=tests/data/image
patched() {                         # FROM TO OFFSET OCTAL-BYTES
    cp "$1" "$made/$2"
    printf "$4" | dd of="$made/$2" bs=1 seek="$3" conv=notrunc 2>/dev/null
}
decoded() { base64 -d >"$made/$1" <<<"$2"; }

head -c 120 $picture/rgb8.png >"$made/truncated.png"
head -c 500 $picture/base_420.jpg >"$made/truncated.jpg"
head -c 90 $picture/lossy.webp >"$made/truncated.webp"
: >"$made/empty.png"
echo "this is text" >"$made/text.png"
head -c 3000 /dev/zero >"$made/zeros.jpg"
decoded huge.png iVBORw0KGgoAAAANSUhEUgABhqAAAYagCAAAAACNOVQUAAAAD0lEQVR42mNoYBiFIwwCABsafQHS0gz6AAAAAElFTkSuQmCC
decoded largest.png iVBORw0KGgoAAAANSUhEUn////9/////CAAAAAAxolS6AAAAD0lEQVR42mNoYBiFIwwCABsafQHS0gz6AAAAAElFTkSuQmCC
decoded nothing.png iVBORw0KGgoAAAANSUhEUgAAAAAAAAAFCAAAAABOLbJ9AAAAD0lEQVR42mNoYBiFIwwCABsafQHS0gz6AAAAAElFTkSuQmCC
decoded narrow.png iVBORw0KGgoAAAANSUhEUgAAAAEAAAD6CAAAAABFK3KPAAAAD0lEQVR42mNoYBiFIwwCABsafQHS0gz6AAAAAElFTkSuQmCC
decoded slim.png iVBORw0KGgoAAAANSUhEUgAAAAEAAADHCAAAAAD9z2b8AAAAD0lEQVR42mNoYBiFgwYCAF6RY4GkvFSpAAAAAElFTkSuQmCC
patched $picture/base_444.jpg huge.jpg 163 '\377\334\377\334'
patched $picture/rgb8.png flipped.png 60 '\377\377'
patched $picture/exif6.jpg exif.jpg 34 '\377\377\377\377\377\377\377\377'
patched $picture/exif6.jpg exif_entries.jpg 38 '\377\377'
cp $picture/animation.webp "$made/animation.webp"
cp $picture/exif3.jpg "$made/misnamed.png"

image_case 3 truncated.png png
image_case 3 truncated.jpg jpeg
image_case 3 truncated.webp webp
image_case 3 empty.png empty
image_case 3 text.png image
image_case 3 zeros.jpg image
image_case 3 huge.png 100000
image_case 3 largest.png 2147483647
image_case 3 nothing.png png
image_case 3 huge.jpg 65500
image_case 3 flipped.png png
image_case 3 animation.webp animation
image_case 3 narrow.png 200
image_case 0 slim.png
image_case 0 exif.jpg
image_case 0 exif_entries.jpg
image_case 0 misnamed.png
for file in rgb16.png palette1.png palette8_interlaced.png palette_clear.png grey1.png \
    grey_alpha16.png cmyk_plain.jpg cmyk_adobe0.jpg ycck_adobe2.jpg one_pixel.jpg \
    grey_progressive.jpg lossless_alpha.webp; do
    cp "$picture/$file" "$made/$file"
    image_case 0 "$file"
done

# ---- captions beside images ----

caption_case() {                    # WHAT TEXT: 6-*.txt is wrong already
    refused 3 "$1" "$tiny/captions/$name.jpg" "$2" data.sources.0.path="$tiny/captions" \
        data.bad=fail train.steps=4
}
mkdir "$tiny/captions"
cp "$tiny/data"/[123]-* "$tiny/captions"
name=odd
cp $picture/exif1.jpg "$tiny/captions/odd.jpg"
caption_case "no caption" "no caption"
: >"$tiny/captions/odd.txt"
caption_case "empty caption" "caption is empty"
printf 'caf\351\n' >"$tiny/captions/odd.txt"
caption_case "Latin-1 caption" "not UTF-8"

# ---- JSON ----

json_case() {                       # CODE WHAT TEXT FILE-CONTENT [NAME] [key=value ...]
    local file=$tiny/${5:-x.jsonl}
    printf '%s\n' "$4" >"$file"
    refused "$1" "$2" "$file" "$3" data.sources.0.path="$file" data.sources.0.format=auto \
        data.sources.0.prompt= \
        data.bad=fail data.window=1 batch.rows=1 batch.samples=1 train.steps=3 "${@:6}"
}
good='{"messages":[{"role":"user","content":[{"type":"image","image":"data/1-base_420.jpg"},{"type":"text","text":"Hm?"}]},{"role":"assistant","content":[{"type":"text","text":"Yes."}]}]}'
printf '%s\n%s\n' "$good" "$good" >"$tiny/good.jsonl"
trains "good JSON lines" data.sources.0.path="$tiny/good.jsonl" data.sources.0.format=auto \
    data.sources.0.prompt=
refused 2 "a prompt for JSON" "$tiny/good.jsonl" "has its own questions" \
    data.sources.0.path="$tiny/good.jsonl" data.sources.0.format=auto
json_case 3 "line that is no JSON" "not valid JSON" "$good"$'\n''{"messages": [oops' x.jsonl data.shuffle=false
json_case 3 "line of a number" "not valid JSON" "$good"$'\n''42'
json_case 3 "line without messages" "neither 'messages' nor" "$good"$'\n''{"text":"x"}'
json_case 3 "no line is JSON" "cannot tell the format" 'hello'
json_case 3 "list cut short" "the list ends inside" "[$good, {" x.json
json_case 3 "something after the list" "something follows the list" "[$good] x" x.json
json_case 3 "empty list" "no samples" "[]" x.json
json_case 3 "empty file" "no samples" "" x.jsonl
json_case 3 "missing image" "No such file" "${good/1-base_420/none}"
json_case 3 "image on the network" "on the network" "${good//data\/1-base_420.jpg/https:\/\/x\/y.jpg}"
json_case 3 "broken base64" "base64" "${good//data\/1-base_420.jpg/data:image\/png;base64,A*}"
json_case 3 "unknown role" "unknown role" "${good/assistant/oracle}"
json_case 3 "unknown part" "unknown part" "${good/\"type\":\"text\",\"text\":\"Hm?\"/\"type\":\"smell\"}"
json_case 3 "more marks than images" "placeholders but 1 image;" \
    '{"image":"data/1-base_420.jpg","conversations":[{"from":"human","value":"<image><image>?"},{"from":"gpt","value":"No."}]}'
json_case 3 "nothing to learn" "whole epoch" '{"messages":[{"role":"user","content":"Hm?"}]}'
json_case 3 "bytes that are no UTF-8" "not valid JSON" "${good/Yes/$'\351'}"
refused 3 "missing JSON file" "$tiny/none.json" "no such file" data.sources.0.path="$tiny/none.json" \
    data.sources.0.format=auto
refused 3 "folder as JSON file" "$tiny/data" "regular file" data.sources.0.format=llava
refused 3 "image as source" "is an image" "the folder" data.sources.0.format=auto \
    data.sources.0.path=$picture/rgb8.png

# ---- shards ----

shard_case() {                      # CODE WHAT TEXT PATH
    refused "$1" "$2" "${5:-$4}" "$3" data.sources.0.path="$4" \
        data.sources.0.format=webdataset data.bad=fail train.steps=2
}
"$vlmoe" data pack "$tiny/data" "$tiny/shards" >"$log" 2>&1
verdict "data pack" $? 0 "6 samples"
echo '{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"odd":1}' >"$tiny/key.jsonl"
"$vlmoe" data pack "$tiny/key.jsonl" "$tiny/key" >"$log" 2>&1
verdict "data pack, an unknown key" $? 3 "the key 'odd' is not read" "data.sources.N.ignore"
"$vlmoe" data pack "$tiny/key.jsonl" "$tiny/key" --ignore odd >"$log" 2>&1
verdict "data pack, a key that need not be read" $? 0 "1 sample, 0 images ("
shard=$(ls "$tiny/shards"/*.tar)
trains "good shard" data.sources.0.path="$shard" data.sources.0.format=auto
head -c 2000 "$shard" >"$tiny/short.tar"
shard_case 3 "shard cut inside a member" "cut short" "$tiny/short.tar"
head -c 4096 "$shard" >"$tiny/between.tar"
shard_case 3 "shard without an end" "cut short" "$tiny/between.tar"
truncate -s 1M "$tiny/hole.txt"
tar --sparse -cf "$tiny/sparse.tar" -C "$tiny" hole.txt
shard_case 3 "shard with a sparse member" "is sparse" "$tiny/sparse.tar"
echo "no tar" >"$tiny/text.tar"
shard_case 3 "text as shard" "tar" "$tiny/text.tar"
: >"$tiny/empty.tar"
shard_case 3 "empty shard" "$tiny" "$tiny/empty.tar"
cp "$shard" "$tiny/damaged.tar"
header=$(grep -abo ustar "$shard" | sed -n '2s/:.*//p')
printf 'XXXXXXXX' | dd of="$tiny/damaged.tar" bs=1 seek=$((header - 100)) conv=notrunc 2>/dev/null
shard_case 3 "shard with a damaged header" "damaged" "$tiny/damaged.tar"
shard_case 3 "missing shard of a range" "shard-000007.tar" "$tiny/shards/shard-{000007..000008}.tar" \
    "shard-000007.tar"
cp "$shard" "$tiny/indexed.tar"
printf 'vlmoe-tar-index 1 1 1 1 zz\ngarbage\n' >"$tiny/indexed.tar.idx"
trains "damaged index is made again" data.sources.0.path="$tiny/indexed.tar" \
    data.sources.0.format=auto
grep -q garbage "$tiny/indexed.tar.idx" && tiny_fail "the damaged index stayed"
echo "mine" >"$tiny/indexed.tar.idx"
trains "foreign file in the index's place" data.sources.0.path="$tiny/indexed.tar" \
    data.sources.0.format=auto
[ "$(cat "$tiny/indexed.tar.idx")" = mine ] || tiny_fail "a foreign file was overwritten"

# ---- sources ----

mkdir "$tiny/hollow"
refused 3 "missing folder" "$tiny/nowhere" "no such folder" data.sources.0.path="$tiny/nowhere"
refused 3 "empty folder" "$tiny/hollow" "no samples" data.sources.0.path="$tiny/hollow"
refused 3 "match that matches nothing" "'*.gif'" "none of its 6" data.sources.0.match='*.gif'
refused 3 "everything too long" "whole epoch" "too long" batch.tokens=16 data.too_long=drop

# ---- weights that are not read, a lock that is none ----

cp -r "$tiny/model" "$tiny/torch"
: >"$tiny/torch/pytorch_model-00001-of-00002.bin"
refused 4 "weights of PyTorch alone" "$tiny/torch" "write them as safetensors" \
    model.path="$tiny/torch"
trains "fresh beside them" model.path="$tiny/torch" model.weights=fresh
mkdir -p "$tiny/others/case/lock"
refused 2 "a folder as lock" "$tiny/others/case/lock" "is a folder" run.folder="$tiny/others"
many=$((4 * $(nproc) + 1))
trains "many threads" device.threads=$many
grep -q "warning: device: device.threads $many .* threads on $(nproc) cores" "$log" ||
    tiny_fail "no word about $many threads: $(head -n 3 "$log")"

# ---- recipes ----

yaml_case() {                       # TEXT PART YAML: code 2
    printf "$3" >"$tiny/wrong.yaml"
    step "$tiny/wrong.yaml"
    verdict "recipe: $2" $? 2 "$1" "$2"
}
yaml_case "wrong.yaml line 2" "tab" 'run:\n\tname: x\n'
yaml_case "wrong.yaml line 1" "rnu.name" 'rnu: {name: x}\n'
yaml_case "nearest is 'optim.lr'" "optim.lrr" 'optim: {lrr: 1}\n'
yaml_case "wrong.yaml line 1" "not a number" 'optim: {lr: fast}\n'
yaml_case "wrong.yaml line 3" "not a whole number" '\ntrain:\n  steps: 1.5\n'
yaml_case "0..10" "outside" 'optim: {lr: 11}\n'
yaml_case "neither true nor false" "device.check" 'device: {check: yes}\n'
yaml_case "is not one of" "cosine|wsd|constant" 'optim: {schedule: linear}\n'
yaml_case "wrong.yaml line 2" "a second time" 'run: {name: a}\nrun: {name: b}\n'
yaml_case "wrong.yaml line 1" "a second time" 'run: {name: a, name: b}\n'
yaml_case "wrong.yaml" "circle" 'include: wrong.yaml\n'
yaml_case "none.yaml" "No such file" 'include: none.yaml\n'
yaml_case "wrong.yaml line 1" "group of sections" '[1, 2]\n'
yaml_case "wrong.yaml line 1" "group of keys" 'run: 5\n'
yaml_case "wrong.yaml line 1" "not a group" 'run: {name: {a: b}}\n'
yaml_case "wrong.yaml line 1" "list of groups" 'data: {sources: here}\n'
yaml_case "wrong.yaml line 2" "unexpected end" 'run: {name: "x\n'
yaml_case "wrong.yaml" "line" 'run: \377\376\n'
yaml_case "model.path is empty" "recipe" 'run: {name: x}\n'
yaml_case "second document" "wrong.yaml" 'run: {name: x}\n---\nrun: {name: y}\n'
refused 2 "unknown source key" "data.sources.0.pth" "nearest" data.sources.0.pth=x
refused 2 "source number" "data.sources has 1 entries" "data.sources.9" data.sources.9.path=x
refused 2 "unknown part" "model.freeze" "nearest is 'vision'" model.freeze=visoin
refused 2 "unknown segment" "memory" "no segment" memory.recompute=actt
refused 2 "evaluation of nothing" "data.hold_out is 0" "eval.every" eval.every=2
refused 2 "run name that is a path" "run.name" "one folder's name" run.name=a/b
refused 2 "pixel limits" "data.min_pixels" "above" data.max_pixels=100
step "$tiny/none.yaml"
verdict "missing recipe" $? 2 "none.yaml" "No such file"

# ---- model folders: weights, tokenizer, config ----

train_well start train.steps=1
good_model=$tiny/runs/start/model
# model_case CODE WHAT TEXT TEXT: $tiny/odd, after `odd`, as the model
odd() { rm -rf "$tiny/odd"; cp -r "$good_model" "$tiny/odd"; }
model_case() { refused "$1" "$2" "$3" "$4" model.path="$tiny/odd" "${@:5}"; }
config() { LC_ALL=C sed -i -E "$1" "$tiny/odd/config.json"; }
weights=$good_model/model.safetensors
size=$(wc -c <"$weights")

odd
trains "good model folder" model.path="$tiny/odd" model.weights=load
head -c $((size - 100)) "$weights" >"$tiny/odd/model.safetensors"
model_case 4 "weights cut short" "$tiny/odd/model.safetensors" "cut short"
head -c 1000 "$weights" >"$tiny/odd/model.safetensors"
model_case 4 "weights cut in the header" "$tiny/odd/model.safetensors" "header"
head -c 5 "$weights" >"$tiny/odd/model.safetensors"
model_case 4 "weights of 5 bytes" "$tiny/odd/model.safetensors" "5 bytes"
: >"$tiny/odd/model.safetensors"
model_case 4 "empty weights" "$tiny/odd/model.safetensors" "0 bytes"
echo "these are not the weights you are looking for" >"$tiny/odd/model.safetensors"
model_case 4 "text as weights" "$tiny/odd/model.safetensors" "not a safetensors file"
cp "$weights" "$tiny/odd/model.safetensors"
echo x >>"$tiny/odd/model.safetensors"
model_case 4 "bytes after the weights" "$tiny/odd/model.safetensors" "after the last tensor"
odd; LC_ALL=C sed -i '1s/"F32"/"I32"/' "$tiny/odd/model.safetensors"
model_case 4 "integer weights" "$tiny/odd" "floating type"
odd; LC_ALL=C sed -i '1s/"F32"/"F16"/' "$tiny/odd/model.safetensors"
model_case 4 "type that does not fill the range" "$tiny/odd/model.safetensors" "its range holds"
odd; LC_ALL=C sed -i '1s/"lm_head.weight"/"lm_haed.weight"/' "$tiny/odd/model.safetensors"
model_case 4 "missing tensor" "$tiny/odd" "lacks 1 of"
odd; config 's/"moe_intermediate_size": 24/"moe_intermediate_size": 20/'
model_case 4 "wrong shape" "$tiny/odd" "the config wants"
odd; config 's/"num_hidden_layers": 3/"num_hidden_layers": 4/'
model_case 4 "one layer too few" "model.language_model.layers.3" "lacks"
odd; rm "$tiny/odd/model.safetensors"
model_case 4 "no weights to load" "$tiny/odd/model.safetensors" "No such file" model.weights=load
odd; rm "$tiny/odd/model.safetensors"
echo '{"weight_map":{"a":"../x.safetensors"}}' >"$tiny/odd/model.safetensors.index.json"
model_case 4 "index that leaves its folder" "index.json" "no file of this folder"

odd; head -c 9000 "$good_model/tokenizer.json" >"$tiny/odd/tokenizer.json"
model_case 3 "tokenizer cut short" "$tiny/odd/tokenizer.json" "line"
odd; echo '{}' >"$tiny/odd/tokenizer.json"
model_case 3 "tokenizer without a model" "$tiny/odd/tokenizer.json" "model"
odd; sed -i 's/"BPE"/"WordPiece"/' "$tiny/odd/tokenizer.json"
model_case 3 "tokenizer of another model" "$tiny/odd/tokenizer.json" "only BPE"
odd; sed -i 's/<|image_pad|>/<|image_qad|>/' "$tiny/odd/tokenizer.json"
model_case 3 "tokenizer without image token" "<|image_pad|>" "no token"
odd; rm "$tiny/odd/tokenizer.json"
model_case 3 "no tokenizer" "$tiny/odd/tokenizer.json" "No such file"
odd; rm "$tiny/odd/model.safetensors"; config 's/"vocab_size": 1280/"vocab_size": 1275/'
model_case 4 "vocabulary below the image token" "config.json" "vocab_size"
odd; config 's/"image_token_id": 1274/"image_token_id": 1270/'
model_case 3 "another image token" "image_token_id" "1270"

config_case() { odd; config "$1"; model_case 4 "config: $1" "$tiny/odd/config.json" "$2"; }
config_case 's/"model_type": "qwen3_vl_moe",/"model_type": "llava",/' model_type
config_case '/"hidden_size": 32/d' hidden_size
config_case 's/"hidden_size": 32/"hidden_size": "wide"/' '"wide"'
config_case 's/"hidden_size": 32/"hidden_size": 0/' hidden_size
config_case 's/"num_key_value_heads": 1/"num_key_value_heads": 3/' num_key_value_heads
config_case 's/"num_heads": 2/"num_heads": 5/' num_heads
config_case 's/"num_experts_per_tok": 2/"num_experts_per_tok": 9/' num_experts_per_tok
config_case 's/\[4, 2, 2\]/[4, 2, 1]/' mrope_section
config_case 's/"silu"/"relu"/' hidden_act
config_case 's/"text_config"/"test_config"/' text_config
config_case '$d' line
odd; rm "$tiny/odd/config.json"
model_case 4 "no config" "$tiny/odd" "has no config.json; expected a model folder"
odd; echo '{"min_pixels": 900, "max_pixels": 100}' >"$tiny/odd/preprocessor_config.json"
model_case 4 "image limits crossed" "preprocessor_config.json" "above max_pixels"

# ---- training states ----

states=$tiny/runs/kept/checkpoints
train_well kept train.steps=4 checkpoint.every=2 checkpoint.export=false
cp -r "$tiny/runs/kept" "$tiny/runs/good"
again() { rm -rf "$tiny/runs/kept"; cp -r "$tiny/runs/good" "$tiny/runs/kept"; }
resume() {                          # CODE WHAT TEXT TEXT [key=value ...]
    train kept train.steps=6 checkpoint.export=false "${@:5}"
    local code=$?
    cp "$tiny/kept.log" "$log"
    verdict "$2" $code "$1" "$3" "$4"
}
resume 0 "good state" "" ""
again; printf '\377' | dd of="$states/step-4/rank-0.bin" bs=1 seek=60000 conv=notrunc 2>/dev/null
resume 0 "flipped byte: the older state" "$states/step-4" "is damaged"
again; rm "$states/step-4/manifest.json"
resume 0 "no manifest: the older state" "$states/step-4/manifest.json" "not used"
[ "$(metric "$tiny/runs/kept/metrics.jsonl" step | paste -sd' ')" = "1 2 3 4 5 6" ] ||
    tiny_fail "steps after the older state: $(metric "$tiny/runs/kept/metrics.jsonl" step | paste -sd' ')"
again; sed -i 's/"step": 4/"step": 5/' "$states/step-4/manifest.json"
resume 0 "changed manifest: the older state" "$states/step-4/manifest.json" "its own hash"
again; truncate -s -8 "$states/step-4/rank-0.bin"
resume 0 "short state: the older one" "$states/step-4/rank-0.bin" "not used"
again; rm "$states/step-4/rank-0.bin"
resume 0 "no state: the older one" "$states/step-4/rank-0.bin is missing" "not used"
again; truncate -s -8 "$states"/step-?/rank-0.bin
resume 4 "only torn states" "none of the 2 training states in $states" "move them away"
[ "$(metric "$tiny/runs/kept/metrics.jsonl" step | paste -sd' ')" = "1 2 3 4" ] ||
    tiny_fail "torn states cost metrics"
again; rm -r "$states/step-2"; mkdir "$states/.step-6.part"
resume 0 "leftover of a crash" "" ""
[ -e "$states/.step-6.part" ] && tiny_fail "the leftover stayed"
again; resume 8 "other seed" "$states/step-4" "run.seed 7 -> 8" run.seed=8
again; resume 8 "other data" "$states/step-4" "data.sources data of hash" data.sources.0.limit=5
again; resume 8 "other frozen parts" "$states/step-4" "model.freeze empty -> vision" model.freeze=vision
again; resume 4 "other frozen parts, allowed" "$states/step-4" "tensors" model.freeze=vision \
    --allow-changed model.freeze
again; sed 's/"hidden_size": 32/"hidden_size": 48/;s/"out_hidden_size": 32/"out_hidden_size": 48/' \
    tests/train/tiny/config.json >"$tiny/model/config.json"
resume 8 "other model" "$states/step-4" "model.path files of hash"
resume 4 "other model, allowed" "$states/step-4" "was the model changed" --allow-changed model.path
cp tests/train/tiny/config.json "$tiny/model/config.json"

# ---- command lines ----

command_case 2 "usage: vlmoe COMMAND"
command_case 2 "nearest is 'train'" trian x
command_case 2 "vlmoe train run.yaml" run.yaml
command_case 2 "nearest is 'train.steps=5'" train "$tiny/recipe.yaml" steps=5
command_case 2 "optim.lr=1e-3" train "$tiny/recipe.yaml" optim.lr 1e-3
command_case 2 "data.sources.0.path" train "$tiny/recipe.yaml" data.sources=photos
command_case 0 "usage: vlmoe COMMAND" help
command_case 0 "usage: vlmoe eval" help eval
command_case 0 "usage: vlmoe data pack SRC DST" data pack --help
command_case 4 "'$tiny/nowhere': no such folder, seen from $PWD" \
    train "$tiny/recipe.yaml" model.path="$tiny/nowhere"
command_case 4 "is $tiny/runs/start/model" generate "$tiny/runs/start" --prompt x
command_case 4 "is untrained" generate "$tiny/model" --prompt x
command_case 2 "--image FILE" generate "$good_model"
command_case 2 "--tokens 0" generate "$good_model" --prompt x --tokens 0
command_case 2 "-n 0" data sample "$tiny/recipe.yaml" -n 0
command_case 2 "is there already" convert "$good_model" "$good_model"
command_case 2 "is there already" data pack "$tiny/data" "$good_model"
command_case 2 "--shard-mb 0" data pack "$tiny/data" "$tiny/x" --shard-mb 0
command_case 2 "$tiny/none/x" data image $picture/rgb8.png --out "$tiny/none/x"
command_case 0 "limits: " data image $picture/rgb8.png
command_case 0 "samples " data check "$tiny/recipe.yaml" data.hold_out=50
command_case 0 "frozen" plan "$tiny/recipe.yaml" model.freeze="[vision, router]"
command_case 3 "image $tiny/none.png: No such file" data image "$tiny/none.png"
cp -r "$tiny/data" "$tiny/partly"
echo "no image" >"$tiny/partly/1-base_420.jpg"
command_case 3 "bad: $tiny/partly" data pack "$tiny/partly" "$tiny/packed"
[ -e "$tiny/packed" ] || [ -e "$tiny/packed.part" ] && tiny_fail "data pack: exit code 3, and shards"
command_case 0 "1 sample left out" data pack "$tiny/partly" "$tiny/packed2" --skip
command_case 2 "0 arguments" train
command_case 2 "2 arguments" train a.yaml b.yaml
command_case 2 "no option '--fast'" eval "$tiny/recipe.yaml" --fast
command_case 2 "takes no options" report "$tiny" --explain
command_case 2 "needs a value" data sample "$tiny/recipe.yaml" -n
command_case 2 "'many' is not a whole number" data sample "$tiny/recipe.yaml" -n many
command_case 2 "nearest is 'data sample'" data simple
command_case 2 "sample, image, check or pack" data
command_case 2 "override 'train.setps=1'" train "$tiny/recipe.yaml" train.setps=1
command_case 2 "train.steps" train "$tiny/recipe.yaml" train.steps=-1
command_case 2 "outside" train "$tiny/recipe.yaml" train.steps=1e300
command_case 2 "hold_out is 0" eval "$tiny/recipe.yaml" --model "$good_model"
command_case 2 "--dtype f64" convert "$good_model" "$tiny/x" --dtype f64
command_case 2 "--shard-mb 0" convert "$good_model" "$tiny/x" --shard-mb 0
command_case 2 "rule 'pill'" data image $picture/rgb8.png --rule pill
command_case 3 "none.png" data image "$tiny/none.png"
command_case 4 "$tiny/nowhere" convert "$tiny/nowhere" "$tiny/x"
command_case 4 "$tiny/nowhere" generate "$tiny/nowhere" --prompt x
command_case 3 "none.jpg" generate "$good_model" --image "$tiny/none.jpg"
command_case 2 "$tiny/nowhere" report "$tiny/nowhere"
command_case 3 "none.safetensors" parity "$good_model" "$tiny/none.safetensors"

echo "$cases cases"
[ $cases -ge 140 ] || tiny_fail "only $cases cases ran"
tiny_end
