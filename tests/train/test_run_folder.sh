#!/usr/bin/env bash
# test_run_folder.sh - what a run keeps of itself: one trainer at a time, nothing rewritten
# once it is done, changed settings said, training saved before anything is looked at.
source tests/train/tiny/tiny.sh
tiny_setup
rm -r "$tiny/data"
tiny_data "$tiny/data" 12

sum() { (cd "$tiny/runs/$1" && find . -type f ! -name lock -exec cksum {} + | sort); }

# ---- a run that is done ----

law=(run.log=info train.steps=4 sample.every=4 sample.count=1 sample.tokens=2
    report.tensorboard=true)
train_well "done" "${law[@]}"
before=$(sum "done")
train "done" "${law[@]}" optim.lr=1
train_expected 0 "done" $? "is already done, 4 of 4 steps"
train "done" "${law[@]}" train.steps=3
train_expected 0 "done" $? "is already done, 4 of 3 steps"
[ "$(sum "done")" = "$before" ] ||
    tiny_fail "a finished run changed: $(diff <(echo "$before") <(sum "done"))"
rm -r "$tiny/runs/done/model" "$tiny/runs/done/report.html" "$tiny/runs/done/samples"
train_well "done" "${law[@]}"
[ "$(sum "done" | grep -E 'model/|samples/')" = "$(grep -E 'model/|samples/' <<<"$before")" ] &&
    [ -s "$tiny/runs/done/report.html" ] ||
    tiny_fail "what was missing of a finished run was not made again: $(sum "done")"

# ---- changed settings ----

train_well changed train.steps=2
holds "$tiny/runs/changed/recipe.yaml" "steps: 2"
train changed train.steps=3 optim.lr=0.02 data.sources.0.name=pictures
train_expected 0 changed $? "train.steps 2 -> 3" "optim.lr 0.01 -> 0.02" \
    "data.sources.0.name empty -> pictures" "changed since step 2"
[ "$(grep -c "changed since" "$tiny/changed.log")" -eq 3 ] ||
    tiny_fail "changes: $(cat "$tiny/changed.log")"
holds "$tiny/runs/changed/metrics.jsonl" '"changed":["optim.lr 0.01 -> 0.02",' "the record of changes"
[ "$(grep -n '"changed":' "$tiny/runs/changed/metrics.jsonl" | cut -d: -f1)" = 3 ] ||
    tiny_fail "changes are recorded with another step than the first they hold for"
holds "$tiny/runs/changed/report.html" "optim.lr 0.01 -&gt; 0.02"

# What decides which samples are trained on, or how they look, stays: refused by name, all
# of it at once, nothing touched; or allowed by name, said and recorded.
train_well kept train.steps=2 data.hold_out=5
before=$(sum kept)
for setting in run.seed=9 model.freeze=vision data.shuffle=false data.hold_out=4 data.too_long=drop data.exif=ignore \
    data.resize_rule=pil data.min_pixels=512 data.max_pixels=2048 data.pixel_limit=100000 data.decode_bytes=65536 \
    data.scan_limit=7 batch.tokens=128 batch.patches=256 batch.images=4 data.sources.0.weight=2; do
    train kept train.steps=3 data.hold_out=5 $setting
    train_expected 8 kept $? "${setting%=*} " " -> ${setting#*=}" "--allow-changed ${setting%=*}"
done
train kept train.steps=3 data.hold_out=5 data.sources.0.limit=9
train_expected 8 kept $? "data.sources data of hash " "--allow-changed data.sources"
train kept train.steps=3 data.hold_out=5 data.sources.0.prompt="Why?"
train_expected 8 kept $? "data.sources data of hash "
train kept train.steps=3 data.hold_out=4 run.seed=9
train_expected 8 kept $? "run.seed 7 -> 9, data.hold_out 5 -> 4;" \
    "--allow-changed run.seed --allow-changed data.hold_out"
train kept train.steps=3 data.hold_out=4 run.seed=9 --allow-changed run.seed
train_expected 8 kept $? "settings: data.hold_out 5 -> 4;"
cp -r "$tiny/model" "$tiny/model2"
sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 1e-3/' "$tiny/model2/config.json"
train kept train.steps=3 data.hold_out=5 model.path="$tiny/model2"
train_expected 8 kept $? "model.path files of hash" "--allow-changed model.path"
[ "$(sum kept)" = "$before" ] || tiny_fail "a refused run was changed"
cp -r "$tiny/model" "$tiny/model3"        # elsewhere, with the same in it
cp -r "$tiny/data" "$tiny/data3"
train_well kept train.steps=3 data.hold_out=5 model.path="$tiny/model3" data.sources.0.path="$tiny/data3"
train kept train.steps=4 data.hold_out=4 data.max_pixels=2048 data.sources.0.limit=9 \
    --allow-changed data.hold_out --allow-changed data.max_pixels --allow-changed data.sources
train_expected 0 kept $? "changed since step 3: data.hold_out 5 -> 4" "changed since step 3: data.max_pixels 4096 -> 2048" \
    "changed since step 3: data.sources.0.limit 0 -> 9" "changed since step 3: data.sources data of hash"
tail -n 1 "$tiny/runs/kept/metrics.jsonl" >"$tiny/last"
holds "$tiny/last" '"data.hold_out 5 -> 4"' "the record of an allowed change"
holds "$tiny/runs/kept/report.html" "data.hold_out 5 -&gt; 4"
holds "$tiny/runs/kept/recipe.yaml" "hold_out: 4"
train kept train.steps=5 data.hold_out=5 data.max_pixels=2048 data.sources.0.limit=9
train_expected 8 kept $? "settings: data.hold_out 4 -> 5;"
"$vlmoe" train "$tiny/recipe.yaml" --allow-changed data.holdout >"$tiny/kept.log" 2>&1
train_expected 2 kept $? "nearest is 'data.hold_out'"

# ---- lines of metrics that are gone are said, in the log and in the report ----

train_well gaps train.steps=3
sed -i 2d "$tiny/runs/gaps/metrics.jsonl"
train gaps train.steps=4
train_expected 0 gaps $? "1 of the 3 steps done are missing, the first of step 2"
holds "$tiny/runs/gaps/report.html" "line in metrics.jsonl is lost</td><td class='n'>1"

# ---- pictures of images that are no files: members of shards, data within JSON ----

"$vlmoe" data pack "$tiny/data" "$tiny/shards" --format folder >"$tiny/pack.log" 2>&1 ||
    tiny_fail "data pack: $(cat "$tiny/pack.log")"
pictures=(train.steps=2 sample.every=1 sample.count=3 sample.tokens=2 data.shuffle=false)
train_well shards "${pictures[@]}" data.sources.0.path="$tiny/shards" data.sources.0.format=webdataset
train_well files "${pictures[@]}"
for name in shards files; do
    [ "$(grep -o "<img alt='[^']*' src='data:image/[a-z]*;base64,[^']*" "$tiny/runs/$name/report.html" |
        grep -o "src=.*" | cksum)" = "$(for sample in $(sed -nE 's/.*"images":\["([^"]*)".*/\1/p' \
            "$tiny/runs/files/samples/step-2.jsonl"); do
            case $(head -c 4 "$sample" | tail -c 3) in
            PNG) type=png ;; IFF) type=webp ;; *) type=jpeg ;; esac
            echo "src='data:image/$type;base64,$(base64 -w0 "$sample")"
        done | cksum)" ] || tiny_fail "$name: other pictures in the report than in the data"
done
[ "$(ls "$tiny/runs/shards/samples/images" | wc -l)" -eq 3 ] ||
    tiny_fail "pictures of three samples: $(ls "$tiny/runs/shards/samples/images")"
holds "$tiny/runs/files/report.html" "learning rate over steps"
holds "$tiny/runs/files/report.html" "gradient norm over steps"

# ---- a terminal: the wait for the first rows is said, no line is longer than it is wide ----

if command -v script >/dev/null; then
    TERM=xterm script -qec "stty cols 50; '$vlmoe' train '$tiny/recipe.yaml' run.name=wide run.log=info" \
        /dev/null </dev/null >"$tiny/wide.log" 2>&1
    holds "$tiny/wide.log" "reading the first rows ..."
    tr '\r' '\n' <"$tiny/wide.log" | sed 's/\x1b\[K//g' | grep '^step ' >"$tiny/steps"
    [ "$(wc -l <"$tiny/steps")" -ge 4 ] && [ "$(wc -L <"$tiny/steps")" -eq 49 ] ||
        tiny_fail "progress on 50 columns: $(cat -v "$tiny/wide.log")"
    TERM=dumb script -qec "'$vlmoe' train '$tiny/recipe.yaml' run.name=dumb run.log=info" \
        /dev/null </dev/null >"$tiny/dumb.log" 2>&1
    grep -q $'\x1b' "$tiny/dumb.log" && tiny_fail "a dumb terminal: $(cat -v "$tiny/dumb.log")"
    [ "$(grep -c "^train: step [1-6]/6 " "$tiny/dumb.log")" -eq 6 ] ||
        tiny_fail "a dumb terminal has no plain lines: $(cat -v "$tiny/dumb.log")"
fi

# ---- one trainer at a time ----

"$vlmoe" train "$tiny/recipe.yaml" run.name=lock train.steps=1000000 \
    optim.schedule=constant >"$tiny/first.log" 2>&1 &
process=$!
while kill -0 $process 2>/dev/null && [ ! -s "$tiny/runs/lock/metrics.jsonl" ]; do :; done
train lock train.steps=1
train_expected 8 lock $? "$tiny/runs/lock" "process $process on $(hostname)"
kill -KILL $process
wait $process 2>/dev/null
train_well lock train.steps=2

# ---- no step at all ----

train none run.log=info train.steps=0
train_expected 0 none $? "no step was trained"
[ -e "$tiny/runs/none/report.html" ] && tiny_fail "a report of nothing"

# ---- bad samples: evaluation and samples go on; what was trained is saved first ----

head -c 60 tests/data/image/rgb8.png >"$tiny/data/0-bad.png"
echo bad >"$tiny/data/0-bad.txt"
looks=(data.shuffle=false train.steps=4 sample.every=2 sample.count=3 sample.tokens=2
    checkpoint.every=2 checkpoint.export=false)
train bad "${looks[@]}"
train_expected 0 bad $? "left out: $tiny/data/0-bad.png: "
[ "$(grep -c "left out: $tiny/data/0-bad.png" "$tiny/bad.log")" -eq 1 ] ||
    tiny_fail "the bad sample is not named once: $(cat "$tiny/bad.log")"
[ "$(wc -l <"$tiny/runs/bad/samples/step-4.jsonl")" -eq 3 ] ||
    tiny_fail "answers: $(cat "$tiny/runs/bad/samples/step-4.jsonl")"
train_well held "${looks[@]}" data.hold_out=3 eval.every=2 eval.rows=10
"$vlmoe" train "$tiny/recipe.yaml" run.name=model "${looks[@]}" checkpoint.export=true \
    >"$tiny/model.log" 2>&1 || tiny_fail "model: $(tail -n 3 "$tiny/model.log")"
for more in data.hold_out=3 --training "--training --swap-images"; do
    # shellcheck disable=SC2086
    "$vlmoe" eval "$tiny/recipe.yaml" --model "$tiny/runs/model/model" $more --samples 5 \
        data.shuffle=false sample.tokens=2 >"$tiny/eval.log" 2>&1
    train_expected 0 eval $? "exact "
done
"$vlmoe" eval "$tiny/recipe.yaml" --model "$tiny/runs/model/model" --training \
    data.shuffle=false data.bad=fail >"$tiny/eval.log" 2>&1
train_expected 3 eval $? "$tiny/data/0-bad.png"

# A place for samples that cannot be written to: the state of that step is there, and the
# run goes on once the place is free.
mkdir -p "$tiny/runs/look"
echo file >"$tiny/runs/look/samples"
for every in 2 100; do
    rm -rf "$tiny/runs/look/checkpoints" "$tiny/runs/look/metrics.jsonl"
    train look "${looks[@]}" checkpoint.every=$every
    [ $? -ne 0 ] || tiny_fail "samples cannot be written, yet the run is well"
    [ "$(ls "$tiny/runs/look/checkpoints")" = step-2 ] ||
        tiny_fail "states: $(ls "$tiny/runs/look/checkpoints")"
done
rm "$tiny/runs/look/samples"
train_well look "${looks[@]}"
same_metrics bad look
cmp "$tiny/runs/bad/samples/step-2.jsonl" "$tiny/runs/look/samples/step-2.jsonl" ||
    tiny_fail "samples of the step that could not be looked at"

tiny_end
