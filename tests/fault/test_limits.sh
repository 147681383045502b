#!/usr/bin/env bash
# test_limits.sh - too little memory, no place to write, files that must not grow: a
# message and an exit code, nothing torn, and the next run goes on.
source tests/train/tiny/tiny.sh
tiny_setup

# ---- memory ----

"$vlmoe" plan "$tiny/recipe.yaml" batch.tokens=4000000 batch.rows=64 >"$tiny/plan.log" 2>&1
expected 6 "plan of too many tokens" $? "$tiny/plan.log" "lower batch.tokens" memory.recompute
grep -q '^fits' "$tiny/plan.log" && tiny_fail "a plan that does not fit says fits"
train large batch.tokens=4000000 batch.rows=64
expected 6 "too many tokens" $? "$tiny/large.log" "lower batch.tokens 4000000" memory.recompute
"$vlmoe" plan "$tiny/recipe.yaml" >"$tiny/plan.log" 2>&1
expected 0 "plan that fits" $? "$tiny/plan.log" "fits: "

# Sanitizers reserve terabytes of addresses; a limit stops them before the program starts.
if (ulimit -v 400000; "$vlmoe" --version) >"$tiny/version.log" 2>&1; then
    (ulimit -v 400000; train narrow)
    expected 6 "address limit" $? "$tiny/narrow.log" "more memory" "device memory"
    (ulimit -v 400000; exec "$vlmoe" plan "$tiny/recipe.yaml") >"$tiny/plan.log" 2>&1
    expected 6 "plan under an address limit" $? "$tiny/plan.log" "are free"
    # 60 images of 19 MB each: every one is gone before the next
    (ulimit -v 400000; exec "$vlmoe" data image $(yes tests/data/image/grey8.png | head -60) \
        --min-pixels 802816) >"$tiny/images.log" 2>&1
    expected 0 "many images under an address limit" $? "$tiny/images.log" "grid 62x52"
fi

# ---- places that cannot be written ----

train file run.folder="$tiny/recipe.yaml"
expected 2 "run folder is a file" $? "$tiny/file.log" "$tiny/recipe.yaml"
train proc run.folder=/proc/runs
expected 2 "run folder cannot be made" $? "$tiny/proc.log" /proc/runs
if [ "$(id -u)" -ne 0 ]; then
    mkdir -m 555 "$tiny/locked"
    train locked run.folder="$tiny/locked"
    expected 2 "read-only run folder" $? "$tiny/locked.log" "Permission denied"
fi
train_well unsaved train.steps=3
rm -r "$tiny/runs/unsaved/checkpoints"
echo file >"$tiny/runs/unsaved/checkpoints"
train unsaved train.steps=4
expected 4 "checkpoints is a file" $? "$tiny/unsaved.log" "$tiny/runs/unsaved/checkpoints"
[ -e /dev/full ] && {
    "$vlmoe" data check "$tiny/recipe.yaml" >/dev/full 2>"$tiny/full.log"
    expected 2 "standard output is full" $? "$tiny/full.log" "standard output"
}

# ---- files that must not grow: as a full disk, at every stage of a run ----

limited() {                         # KIB NAME [key=value ...]
    (ulimit -f "$1"; shift; train "$@")
}
law=(train.steps=4 checkpoint.every=2)
train_well whole "${law[@]}"

limited 1 early "${law[@]}"
expected 2 "no room for the recipe" $? "$tiny/early.log" "File too large" recipe.yaml
limited 500 state "${law[@]}"
expected 4 "no room for a state" $? "$tiny/state.log" "File too large" rank-0.bin
[ -z "$(ls -A "$tiny/runs/state/checkpoints")" ] ||
    tiny_fail "a torn state stayed: $(ls -A "$tiny/runs/state/checkpoints")"
limited 500 ranks --ranks 3 "${law[@]}"
expected 4 "no room for the file of a rank" $? "$tiny/ranks.log" "File too large" rank-
[ -z "$(ls -A "$tiny/runs/ranks/checkpoints")" ] ||
    tiny_fail "a torn state of three ranks stayed: $(ls -A "$tiny/runs/ranks/checkpoints")"
# The second state fails: the first stays good and is gone on from.
train_well second train.steps=2 optim.schedule=constant
limited 500 second train.steps=4 optim.schedule=constant
expected 4 "no room for the second state" $? "$tiny/second.log" "File too large"
[ "$(ls -A "$tiny/runs/second/checkpoints")" = step-2 ] ||
    tiny_fail "states after a full disk: $(ls -A "$tiny/runs/second/checkpoints")"
limited 500 export "${law[@]}" checkpoint.export=false
train_well export "${law[@]}" checkpoint.export=false
limited 200 export "${law[@]}"
expected 4 "no room for the model" $? "$tiny/export.log" "File too large" model.safetensors
leftover=$(ls -A "$tiny/runs/export" | grep -E '^\.|^model')
[ -z "$leftover" ] || tiny_fail "a torn model stayed: $leftover"
long=(train.steps=150 batch.rows=1 batch.samples=1)
limited 70 metrics "${long[@]}"
expected 2 "no room for metrics" $? "$tiny/metrics.log" "File too large" metrics.jsonl

for name in early state export; do
    train_well $name "${law[@]}"
    same_metrics whole $name
    same_model whole $name
done
train_well metrics "${long[@]}"
train_well long "${long[@]}"
same_metrics long metrics
train_well second train.steps=4 optim.schedule=constant
train_well constant train.steps=4 optim.schedule=constant
same_metrics constant second
same_model constant second

# Shards and conversions leave nothing torn either (what was packed so far is in .part).
(ulimit -f 10; exec "$vlmoe" data pack "$tiny/data" "$tiny/shards") >"$tiny/pack.log" 2>&1
expected 2 "no room for shards" $? "$tiny/pack.log" "File too large"
[ -e "$tiny/shards" ] && tiny_fail "torn shards: $(ls -A "$tiny/shards")"
"$vlmoe" data pack "$tiny/data" "$tiny/shards" >"$tiny/pack.log" 2>&1
expected 0 "packing again" $? "$tiny/pack.log" "64 samples, 64 images"
[ -e "$tiny/shards.part" ] && tiny_fail "packing left shards.part"
(ulimit -f 100; exec "$vlmoe" convert "$tiny/runs/whole/model" "$tiny/copy") >"$tiny/convert.log" 2>&1
expected 4 "no room to convert" $? "$tiny/convert.log" "File too large"
compgen -G "$tiny/.copy*" >/dev/null || compgen -G "$tiny/copy*" >/dev/null &&
    tiny_fail "a torn model folder: $(ls -dA "$tiny"/*copy*)"

tiny_end
