#!/usr/bin/env bash
# test_commands.sh - every command once, and its numbers against each other's.
source tests/train/tiny/tiny.sh
tiny_setup
out=$tiny/out

# works COMMAND...: into $out, and it must succeed
works() {
    "$vlmoe" "$@" >"$out" 2>"$tiny/error" && return
    tiny_fail "vlmoe $*: exit code $?: $(tail -n 3 "$tiny/error")"
    return 1
}
# equal WHAT A B
equal() { [ "$2" = "$3" ] && [ -n "$2" ] || tiny_fail "$1: '$2', expected '$3'"; }
# true_that WHAT EXPRESSION
true_that() { awk "BEGIN { exit !($2) }" || tiny_fail "$1: $2 does not hold"; }
# number LABEL: the first number behind it in $out
number() { sed -nE "s/.*$1 *([0-9.]+).*/\1/p" "$out" | head -n 1; }

train_well run train.steps=4 data.hold_out=5 checkpoint.every=2 sample.every=4 sample.count=2 \
    sample.tokens=8 eval.every=4 eval.rows=100 report.trace_step=3 report.tensorboard=true
run=$tiny/runs/run
model=$run/model
first() { head -n 1 "$run/metrics.jsonl" | metric /dev/stdin "$1"; }
last() { tail -n 1 "$run/metrics.jsonl" | metric /dev/stdin "$1"; }
held=(data.hold_out=5)

# ---- data sample: slots add up, and are those that training books ----

works data sample "$tiny/recipe.yaml" -n 3 "${held[@]}"
awk '
    function row_end() {
        if (!rows) return
        if (weights != supervised || pads != image || tokens != slots - padding)
            print "row " rows ": " weights " weights, " pads " image tokens, " tokens " tokens"
    }
    /^row / {
        row_end()
        for (i = 1; i <= NF; i++) {
            if ($i == "supervised") supervised = $(i - 1)
            if ($i == "context") context = $(i - 1)
            if ($i == "image") image = $(i - 1)
            if ($i == "padding") padding = $(i - 1)
            if ($i == "slots;") slots = $(i - 1)
        }
        if (supervised + context + image + padding != slots) print "the sum is not " slots
        rows++; weights = pads = tokens = 0; scored = -1
        all[1] += slots; all[2] += supervised; all[3] += image
        next
    }
    /^ place/ { next }
    /^-- / { begins = 1; scored = -1; samples++; next }
    rows {
        n = NF                          # from the right: a piece may hold blanks
        if ($n !~ /,/) n--
        position = $n; sub(/;/, "", position)
        if (n < NF) pads++
        input = $(n - 3); target = $(n - 2); weight = $(n - 1)
        if (begins && (position != "0,0,0" || $1 != 0)) print "a sample begins at " position
        if (scored >= 0 && input != scored) print "target " scored " but next input " input
        if ((weight == 1) != (target >= 0)) print "weight " weight " of target " target
        scored = weight ? target : -1
        tokens++; weights += weight; begins = 0
    }
    END { row_end(); print "sums", all[1], all[2], all[3], samples }
' "$out" >"$tiny/sums"
equal "data sample" "$(cat "$tiny/sums")" \
    "sums $(first slots) $(first supervised_tokens) $(first image_tokens) $(first samples)"

# ---- data check, data pack: the same counts from a folder and from its shards ----

works data check "$tiny/recipe.yaml" && cp "$out" "$tiny/folder"
equal "data check: samples" "$(number '^samples')" 64
equal "data check: images" "$(number '^images')" 64
works data pack "$tiny/data" "$tiny/shards" --format folder
holds "$out" "64 samples, 64 images"
works data check "$tiny/recipe.yaml" data.sources.0.path="$tiny/shards" data.sources.0.format=webdataset
cmp -s "$tiny/folder" "$out" || tiny_fail "shards and folder differ: $(diff "$tiny/folder" "$out")"
tokens=$(sed -nE 's/^tokens +([0-9]+)$/\1/p' "$tiny/folder")
train_well epoch train.steps=1 batch.tokens=4096 batch.patches=4096 batch.samples=64 \
    batch.images=64 batch.rows=1 data.window=64 checkpoint.export=false
equal "an epoch in a row" "$(metric "$tiny/runs/epoch/metrics.jsonl" useful_tokens)" "$tokens"
equal "its supervised tokens" "$(metric "$tiny/runs/epoch/metrics.jsonl" supervised_tokens)" \
    "$(sed -nE 's/^supervised tokens +([0-9]+)$/\1/p' "$tiny/folder")"

# ---- data image ----

works data image tests/data/image/base_444.jpg tests/data/image/one_pixel.jpg --out "$tiny/i.safetensors"
holds "$out" "base_444.jpg: 37x29 pixels -> grid 20x16 patches, 80 tokens"
holds "$out" "one_pixel.jpg: 1x1 pixels -> grid 16x16 patches, 64 tokens"
header=$(od -An -tu8 -N8 "$tiny/i.safetensors" | tr -d ' ')
equal "data image --out: bytes" "$(wc -c <"$tiny/i.safetensors")" \
    $((8 + header + 4 * (320 + 256) * 3 * 2 * 16 * 16 + 8 * 2 * 3))

# Clear pixels are white unless told otherwise, here and in training; 16 bits are said once.
for alpha in white drop; do
    works data image tests/data/image/rgba8.png --alpha $alpha --out "$tiny/$alpha.safetensors"
    train_well "$alpha" train.steps=1 data.alpha=$alpha checkpoint.export=false
done
works data image tests/data/image/rgba8.png --out "$tiny/unsaid.safetensors"
cmp -s "$tiny/white.safetensors" "$tiny/unsaid.safetensors" || tiny_fail "alpha is not white unsaid"
cmp -s "$tiny/white.safetensors" "$tiny/drop.safetensors" && tiny_fail "alpha drop is white"
[ "$(metric "$tiny/runs/white/metrics.jsonl" loss)" != \
    "$(metric "$tiny/runs/drop/metrics.jsonl" loss)" ] || tiny_fail "data.alpha trains the same"
works data image tests/data/image/{grey16,rgb16,grey_alpha16}.png
equal "16-bit reduced, lines" "$(grep -c '16-bit reduced' "$tiny/error")" 1

# ---- plan: its bytes are the run's, its parameters the exported model's ----

works plan "$tiny/recipe.yaml"
holds "$out" "fits: "
equal "plan and run: bytes" "$(number 'allocated: .*[(]')" "$(last peak_bytes)"
works plan "$tiny/recipe.yaml" --ranks 2 parallel.pp=2
holds "$out" "fits: rank 1 needs most"
bytes=$(number 'allocated: .*[(]')
train_well pp2 --ranks 2 parallel.pp=2 train.steps=1 checkpoint.export=false
equal "plan and run of two ranks: bytes" "$bytes" \
    "$(metric "$tiny/runs/pp2/metrics.jsonl" peak_bytes)"
works plan "$tiny/recipe.yaml"
parameters=$(number '^all')
header=$(od -An -tu8 -N8 "$model/model.safetensors" | tr -d ' ')
equal "parameters" "$(wc -c <"$model/model.safetensors")" $((8 + header + 4 * parameters))
works plan "$tiny/recipe.yaml" --explain
true_that "plan --explain" "$(wc -l <"$out") > 500"

# ---- eval: the run's own held-out loss; packed rows equal samples alone ----

works eval "$tiny/recipe.yaml" --model "$model" "${held[@]}" eval.rows=100 --samples 0
equal "eval and run" "$(number '^loss')" "$(printf %.6f "$(last eval_loss)")"
packed=$(number '^loss') supervised=$(number 'supervised tokens') rows=$(number rows)
works eval "$tiny/recipe.yaml" --model "$model" "${held[@]}" eval.rows=100 --samples 2 batch.samples=1
equal "alone: supervised tokens" "$(number 'supervised tokens')" "$supervised"
true_that "alone: rows" "$(number rows) == 12 && $rows <= 6"
true_that "packed loss is the loss alone" "($packed - $(number '^loss'))^2 < ($packed * 1e-5)^2"
holds "$out" "exact 0 of 2"
works eval "$tiny/recipe.yaml" --model "$model" "${held[@]}" eval.rows=1 --samples 0 \
    batch.tokens=1024 batch.patches=1024 batch.samples=64 batch.images=64
true_that "one row holds all of it" "$(number 'samples') == 12 && $(number rows) == 1"
true_that "one row has the same loss" "($packed - $(number '^loss'))^2 < ($packed * 1e-5)^2"

# ---- generate: the run's own samples ----

sample() { sed -nE "1s/.*\"$1\":\"([^\"]*)\".*/\1/p" "$run/samples/step-4.jsonl"; }
ls "$tiny/data" | grep -v txt | LC_ALL=C sort | sed -n '0~5s|^|data/|p' >"$tiny/held"
equal "run: samples that were held out" \
    "$(sed -E 's/.*"name":"([^"]*)".*/\1/' "$run/samples/step-4.jsonl" | grep -oFf "$tiny/held" | wc -l)" 2
works generate "$model" --image "$(sample name)" --prompt "What is this?" --tokens 8 \
    data.min_pixels=256 data.max_pixels=4096
equal "generate and run" "$(cat "$out")" "$(sample model)"
works generate "$model" --prompt "Say it." --tokens 3

# Several images, before the prompt or where it has <image>: a model that has learnt an
# answer for each order gives it.
images=("$tiny"/data/*-exif1.jpg "$tiny"/data/*-base_444.jpg)
order() {                               # ANSWER IMAGE IMAGE
    printf '{"messages":[{"role":"user","content":"<image> or <image>?"},{"role":"assistant","content":"%s"}],"images":["%s","%s"]}\n' "$@"
}
{ order "Grey" "${images[0]}" "${images[1]}" && order "Red" "${images[1]}" "${images[0]}"; } >"$tiny/two.jsonl"
train_well order train.steps=60 data.sources.0.path="$tiny/two.jsonl" data.sources.0.format=sharegpt \
    data.sources.0.prompt=
asked=(--tokens 8 data.min_pixels=256 data.max_pixels=4096)
two=(--image "${images[0]}" --image "${images[1]}")
works generate "$tiny/runs/order/model" "${two[@]}" --prompt "<image> or <image>?" "${asked[@]}"
equal "generate: two images" "$(cat "$out")" "Grey"
works generate "$tiny/runs/order/model" --image "${images[1]}" --image "${images[0]}" \
    --prompt "<image> or <image>?" "${asked[@]}"
equal "generate: two images, the other way round" "$(cat "$out")" "Red"
works generate "$model" "${two[@]}" --prompt "Same?" "${asked[@]}"
cp "$out" "$tiny/before"
works generate "$model" "${two[@]}" --prompt "<image><image>Same?" "${asked[@]}"
cmp -s "$out" "$tiny/before" || tiny_fail "generate: marks in front are not images in front"
for prompt in "<image>?" "<image><image><image>?"; do
    "$vlmoe" generate "$model" "${two[@]}" --prompt "$prompt" >"$out" 2>&1
    expected 2 "generate: marks and images" $? "$out" "gives 2 images"
done

# ---- eval: what cannot be read is counted; every second sample is held out ----

cp -r "$tiny/data" "$tiny/hurt"
for name in $(ls "$tiny/hurt" | grep -v txt | sort | sed -n 11,12p); do echo no >"$tiny/hurt/$name"; done
works eval "$tiny/recipe.yaml" --model "$model" data.hold_out=2 eval.rows=100 --samples 0 \
    data.sources.0.path="$tiny/hurt"
holds "$out" "left out: 1 sample that cannot be read, 0 too long, 0 without loss"
works eval "$tiny/recipe.yaml" --model "$model" data.hold_out=2 eval.rows=100 --samples 0
grep -q "left out" "$out" && tiny_fail "eval: nothing was to be left out"

# ---- parity: the example of its help, on the quickstart's model ----

works train recipes/quickstart.yaml run.folder="$tiny/runs" run.log=warn train.steps=1 \
    data.sources.0.path="$tiny/data" data.sources.0.match= sample.every=0 data.min_pixels=256 \
    data.max_pixels=4096
works parity "$tiny/runs/quickstart/model" tests/model/golden/parity.safetensors --out "$tiny/mine.json"
true_that "parity: the sum" "($(number '^loss') - $(number cross_entropy) - $(number aux_coef) * \
    $(number ' aux_loss'))^2 < 1e-10"
for key in loss cross_entropy aux_loss; do
    equal "parity --out: $key" "$(printf %.6g "$(number "\b$key")")" \
        "$(printf %.6g "$(grep -oE "\"$key\": *[-0-9.e+]+" "$tiny/mine.json" | grep -oE '[-0-9.e+]+$')")"
done
# Nothing supervised: no loss, no gradients, nothing to compare.
cp tests/model/golden/parity.safetensors "$tiny/unscored.safetensors"
header=$(od -An -tu8 -N8 "$tiny/unscored.safetensors" | tr -d ' ')
read -r from to < <(head -c $((8 + header)) "$tiny/unscored.safetensors" |
    grep -aoE '"labels":\{[^}]*\}' | grep -oE '\[[0-9]+,[0-9]+\]\}' | tr '[,]}' ' ')
for ((i = from; i < to; i += 8)); do printf '\234\377\377\377\377\377\377\377'; done |
    dd of="$tiny/unscored.safetensors" bs=1 seek=$((8 + header + from)) conv=notrunc 2>/dev/null
"$vlmoe" parity "$tiny/runs/quickstart/model" "$tiny/unscored.safetensors" >"$out" 2>&1
expected 3 "parity: nothing supervised" $? "$out" "no token is supervised"
"$vlmoe" parity --help | grep -qF tests/model/golden/parity.safetensors || tiny_fail "parity --help"

# ---- plan: a rank that is not there is refused, not the last one shown ----

"$vlmoe" plan "$tiny/recipe.yaml" --rank 99999999999 >"$out" 2>&1
[ $? -eq 2 ] || tiny_fail "plan --rank: exit code"
holds "$out" "there is no rank 99999999999 of 1 rank,"

# ---- plan: --ranks is parallel.ranks, and --world is --ranks ----

works plan "$tiny/recipe.yaml" parallel.ranks=4 batch.rows=4 parallel.tp=2
there() { sed -E "s/ of [0-9.]+ [MG]iB//" "$1"; }       # but not what memory this machine has now
there "$out" >"$tiny/four"
holds "$tiny/four" "mesh of 4 ranks"
for ranks in "--ranks 4" "--world 4" "--ranks 4 --rank 0" "--ranks 2"; do
    # shellcheck disable=SC2086
    works plan "$tiny/recipe.yaml" $ranks batch.rows=4 parallel.tp=2
    case $ranks in
    "--ranks 2") cmp -s <(there "$out") "$tiny/four" && tiny_fail "plan $ranks is that of 4 ranks" ;;
    *--rank\ *) holds "$out" "rank 0" "plan $ranks" ;;
    *) cmp <(there "$out") "$tiny/four" || tiny_fail "plan $ranks is another than parallel.ranks=4" ;;
    esac
done
works plan "$tiny/recipe.yaml" --ranks 4 batch.rows=4 --search
holds "$out" "layouts of 4 ranks"
"$vlmoe" plan "$tiny/recipe.yaml" --ranks 4 --world 4 batch.rows=4 >"$out" 2>&1
expected 2 "plan: --ranks and --world" $? "$out" "are one setting (parallel.ranks)"
"$vlmoe" plan "$tiny/recipe.yaml" --ranks 3 batch.rows=3 parallel.tp=2 >"$out" 2>&1
expected 2 "plan: ranks that do not divide" $? "$out" "parallel.ranks (--ranks N)"
for bad in -1 many 1e99; do
    "$vlmoe" plan "$tiny/recipe.yaml" --ranks $bad >"$out" 2>&1
    expected 2 "plan --ranks $bad" $? "$out" "parallel.ranks"
done

# ---- convert: a state gives the exported bytes; there and back ----

works convert "$run/checkpoints/step-4" "$tiny/from_state"
cmp "$model/model.safetensors" "$tiny/from_state/model.safetensors" || tiny_fail "convert of a state"
works convert "$model" "$tiny/copy"
cmp "$model/model.safetensors" "$tiny/copy/model.safetensors" || tiny_fail "convert of a model"
train_well narrow train.steps=1 checkpoint.dtype=bf16
narrow=$tiny/runs/narrow/model/model.safetensors
equal "checkpoint.dtype=bf16: bytes" "$(wc -c <"$narrow")" \
    $((8 + $(od -An -tu8 -N8 "$narrow" | tr -d ' ') + 2 * parameters))
works convert "$model" "$tiny/half" --dtype bf16
header=$(od -An -tu8 -N8 "$tiny/half/model.safetensors" | tr -d ' ')
equal "bf16 bytes" "$(wc -c <"$tiny/half/model.safetensors")" $((8 + header + 2 * parameters))
works convert "$tiny/half" "$tiny/half2" && cmp "$tiny/half/model.safetensors" "$tiny/half2/model.safetensors" ||
    tiny_fail "bf16 does not survive"
works eval "$tiny/recipe.yaml" --model "$tiny/half" "${held[@]}" eval.rows=100 --samples 0
true_that "bf16 loss" "($packed - $(number '^loss'))^2 < 0.01^2"
diff -r -x model.safetensors "$model" "$tiny/copy" >/dev/null || tiny_fail "convert lost files"

# experts as transformers has them: the same answers, and back the same bytes; training from
# there writes that layout unless told otherwise
five=$tiny/five
works convert "$model" "$five" --experts transformers
cmp -s "$model/model.safetensors" "$five/model.safetensors" && tiny_fail "--experts did nothing"
works generate "$model" --image tests/data/image/base_420.jpg --tokens 8 && cp "$out" "$tiny/answer"
works generate "$five" --image tests/data/image/base_420.jpg --tokens 8
cmp "$out" "$tiny/answer" || tiny_fail "another answer from the other layout"
works convert "$five" "$tiny/back" --experts released
cmp "$model/model.safetensors" "$tiny/back/model.safetensors" || tiny_fail "--experts released"
train_well five model.path="$five" train.steps=1 optim.lr=0
cmp "$five/model.safetensors" "$tiny/runs/five/model/model.safetensors" ||
    tiny_fail "an export in another layout than its model folder"
train_well four model.path="$five" train.steps=1 optim.lr=0 checkpoint.experts=released
cmp "$model/model.safetensors" "$tiny/runs/four/model/model.safetensors" ||
    tiny_fail "checkpoint.experts=released"

# a model that is not finite: by force alone
cp -r "$model" "$tiny/odd"
size=$(wc -c <"$tiny/odd/model.safetensors")
printf '\377\377\377\177' | dd of="$tiny/odd/model.safetensors" bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null
for options in "" "--dtype bf16" "--experts transformers"; do
    # shellcheck disable=SC2086
    "$vlmoe" convert "$tiny/odd" "$tiny/odd2" $options >"$out" 2>&1
    expected 5 "convert of NaN $options" $? "$out" "NaN or infinite" "--force"
    [ ! -e "$tiny/odd2" ] || tiny_fail "NaN was exported"
done
works convert "$tiny/odd" "$tiny/odd2" --force
cmp "$tiny/odd/model.safetensors" "$tiny/odd2/model.safetensors" || tiny_fail "convert --force"

# ---- profile: its rows cover the step ----

works profile "$tiny/recipe.yaml" --steps 3 --warmup 1 --trace "$tiny/trace.json"
true_that "profile coverage" "$(number cover) >= 98 && $(number cover) <= 102"
share=$(awk '/^[a-z]/ && $NF ~ /^[0-9.]+$/ && $(NF - 1) ~ /^[0-9.]+$/ { n += $NF } END { print n }' "$out")
true_that "profile shares add up" "$share > 97 && $share < 103"
# What a segment does not do takes no time: attention has no weights, patches want no gradient.
[ "$(awk '$1 == "core_attn" { n += $4 > 0 && $5 > 0 && $6 == 0 }
          $1 == "patch_embed" { n += $4 > 0 && $5 == 0 && $6 > 0 } END { print n }' "$out")" -eq 3 ] ||
    tiny_fail "profile: passes of core_attn, patch_embed: $(cat "$out")"
for part in "data wait" vision projector attention router experts head optimizer; do
    grep -q "^$part " "$out" || tiny_fail "profile: no row '$part'"
done

works profile "$tiny/recipe.yaml" --steps 3 --warmup 1 --ranks 4 parallel.tp=2 batch.rows=2 --rank 3 \
    --trace "$tiny/trace3.json"
true_that "profile coverage of rank 3" "$(number cover) >= 98 && $(number cover) <= 102"
[ "$(grep -cE '^[0-3] +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$' "$out")" -eq 4 ] ||
    tiny_fail "profile: not each of 4 ranks has a line: $(cat "$out")"
holds "$out" "of all ranks"
grep -q '^rank 3$' "$out" && grep -q '^experts ' "$out" || tiny_fail "profile: rank 3: $(cat "$out")"
head -c 20 "$tiny/trace3.json" | grep -q '^{"displayTimeUnit"' || tiny_fail "profile: no trace of rank 3"
"$vlmoe" profile "$tiny/recipe.yaml" --ranks 2 batch.rows=2 --rank 2 >"$out" 2>&1
expected 2 "profile of a rank that is not there" $? "$out" "there is no rank 2 of 2 ranks"

# ---- what a run leaves ----

for trace in "$tiny/trace.json" "$run/trace.json"; do
    head -c 20 "$trace" | grep -q '^{"displayTimeUnit"' && tail -c 4 "$trace" | grep -q '}' ||
        tiny_fail "$trace is no trace"
done
works report "$run"
for word in '<html' '</html>' '<svg'; do holds "$run/report.html" "$word"; done
for word in "loss over steps" "training loss, smoothed" "parameters. Written" \
    "To held-out samples" "<img alt='$tiny/data/"; do
    holds "$run/report.html" "$word"
done
grep -qE '(src|href)="https?:' "$run/report.html" && tiny_fail "the report links outside"
[ -s "$run/loss.svg" ] && [ -s "$run/plan.txt" ] || tiny_fail "loss.svg or plan.txt is missing"
find "$run/events" -type f -size +100c | grep -q . || tiny_fail "no TensorBoard events"
"$vlmoe" train "$run/recipe.yaml" run.name=again >"$out" 2>&1 ||
    tiny_fail "the resolved recipe does not train: $(tail -n 2 "$out")"
same_metrics run again
same_model run again

# ---- help ----

works doctor
for word in devices libraries limits openblas; do holds "$out" "$word" doctor; done
works --help
commands=$(sed -nE 's/^  ([a-z]+) .*/\1/p' "$out")
true_that "commands" "$(wc -w <<<"$commands") >= 10"
for name in $commands; do
    works "$name" --help
    holds "$out" "usage: vlmoe $name" "$name --help"
    holds "$out" "example: vlmoe $name" "$name --help"
done

# ---- the seed reaches weights and order; the folder's name reaches neither ----

still=(train.steps=2 optim.lr=0)
train_well seed "${still[@]}"
train_well other "${still[@]}" run.seed=8
cmp -s "$tiny/runs/seed/model/model.safetensors" "$tiny/runs/other/model/model.safetensors" &&
    tiny_fail "another seed gave the same weights"
[ "$(metric "$tiny/runs/seed/metrics.jsonl" order)" != "$(metric "$tiny/runs/other/metrics.jsonl" order)" ] ||
    tiny_fail "another seed gave the same order"
cp -r "$tiny/data" "$tiny/another name of the data"
train_well moved "${still[@]}" data.sources.0.path="$tiny/another name of the data" \
    data.sources.0.name="$tiny/data"
same_metrics seed moved
same_model seed moved

tiny_end
