#!/usr/bin/env bash
# test_samples.sh - samples that cannot be used and gradients that are not finite: left out
# or skipped, counted and named, and a run that goes wrong for good stops with its code.
source tests/train/tiny/tiny.sh
tiny_setup
rm -r "$tiny/data"
tiny_data "$tiny/data" 12
metrics() { echo "$tiny/runs/$1/metrics.jsonl"; }
sum() { metric "$(metrics "$1")" "$2" | awk '{ n += $1 } END { print n + 0 }'; }

# Two epochs of 12 samples, a sample a row, a row a step; in the sources' order.
walk=(batch.rows=1 batch.samples=1 data.window=1 data.shuffle=false checkpoint.export=false)

# ---- bad samples ----

bad() { head -c 60 tests/data/image/rgb8.png >"$tiny/data/$1.png"; echo bad >"$tiny/data/$1.txt"; }
bad 3-bad
train_well one "${walk[@]}" train.steps=24 data.bad_limit=1
[ "$(metric "$(metrics one)" bad_samples | tail -n 1)" -eq 2 ] || tiny_fail "2 bad samples are not counted"
[ "$(sum one dropped_samples)" -eq 2 ] || tiny_fail "2 dropped samples are not counted"
[ "$(sum one samples)" -eq 24 ] || tiny_fail "24 samples were not trained on"
[ "$(grep -c "left out: $tiny/data/3-bad.png: " "$tiny/one.log")" -eq 1 ] ||
    tiny_fail "the bad sample, met twice, is not named once: $(cat "$tiny/one.log")"
train stop "${walk[@]}" train.steps=24 data.bad=fail
train_expected 3 stop $? "$tiny/data/3-bad.png"

bad 3-bae
bad 3-baf
train_well three "${walk[@]}" train.steps=12 data.bad_limit=3
train limit "${walk[@]}" train.steps=12 data.bad_limit=2
train_expected 3 limit $? "3 bad samples in a row, the limit is 2" "$tiny/data/3-baf.png"
"$vlmoe" data check "$tiny/recipe.yaml" >"$tiny/check.log" 2>&1
train_expected 0 check $? "bad: sample $tiny/data/3-bad.png" \
    "3  png: the file is truncated (first: $tiny/data/3-bad.png)"
grep -qE "^bad +3$" "$tiny/check.log" || tiny_fail "data check: bad ones: $(cat "$tiny/check.log")"
"$vlmoe" data check "$tiny/recipe.yaml" data.bad=fail >"$tiny/check.log" 2>&1
train_expected 3 check $? "3 of 15 samples cannot be read, and data.bad is fail"
rm "$tiny"/data/3-ba?.*

# What format imagefolder leaves out is counted in the report, once.
cp "$tiny/data/1-base_420.jpg" "$tiny/data/2-unlisted.jpg"
mkdir "$tiny/listed" && cp "$tiny"/data/*.jpg "$tiny/listed"
echo '{"file_name": "1-base_420.jpg", "text": "A cat."}' >"$tiny/listed/metadata.jsonl"
unlisted=$(($(ls "$tiny/listed" | wc -l) - 2))
said="$tiny/listed: images in no line of metadata.jsonl, so not read: $unlisted (first: "
"$vlmoe" data check "$tiny/recipe.yaml" run.log=info data.sources.0.format=imagefolder \
    data.sources.0.path="$tiny/listed" >"$tiny/check.log" 2>&1
train_expected 0 check $? "$said"
[ "$(grep -cF "$said" "$tiny/check.log")" -eq 1 ] || tiny_fail "left out, not once: $(cat "$tiny/check.log")"
rm "$tiny/data/2-unlisted.jpg"

# A long look shows how far it is, where a terminal does.
if command -v script >/dev/null; then
    for i in $(seq 20000); do echo 7; done >"$tiny/long.jsonl"
    TERM=xterm script -qec "'$vlmoe' data check '$tiny/recipe.yaml' run.log=info data.sources.0.prompt= \
        data.sources.0.format=llava data.sources.0.path='$tiny/long.jsonl'" /dev/null </dev/null >"$tiny/check.log" 2>&1
    train_expected 3 check $? "/20000  left 0m" "samples/s"
fi

# What is quoted of a sample does not make a cause of its own, nor are there ever more.
for i in $(seq 30); do
    echo '{"conversations": [{"from": "human", "value": "<image> a '"$(printf %$((i))s | tr ' ' x)"'"}, {"from": "gpt", "value": "b"}]}'
done >"$tiny/quoted.jsonl"
"$vlmoe" data check "$tiny/recipe.yaml" data.sources.0.prompt= data.sources.0.format=llava data.sources.0.path="$tiny/quoted.jsonl" >"$tiny/check.log" 2>&1
train_expected 3 check $? "30  '<image>' stands in the text, but no image is given; text begins '...' (first: $tiny/quoted.jsonl:1)"
for i in $(seq 110); do
    key=q$(tr 0-9 a-j <<<"$i")
    echo '{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "'"$key"'": 1}'
done >"$tiny/keys.jsonl"
"$vlmoe" data check "$tiny/recipe.yaml" data.sources.0.prompt= data.sources.0.format=llava data.sources.0.path="$tiny/keys.jsonl" >"$tiny/check.log" 2>&1
train_expected 3 check $? "10  other causes"

# ---- samples longer than a row ----

printf 'word %.0s' $(seq 200) >"$tiny/data/5-long.txt"
cp tests/data/image/base_444.jpg "$tiny/data/5-long.jpg"
train_well drop "${walk[@]}" train.steps=12 data.too_long=drop
[ "$(sum drop dropped_samples)" -eq 1 ] || tiny_fail "too long: $(sum drop dropped_samples) dropped"
[ "$(sum drop too_long_samples)" -eq 1 ] || tiny_fail "too long: $(sum drop too_long_samples) counted"
for policy in drop shrink error; do
    "$vlmoe" data check "$tiny/recipe.yaml" data.too_long=$policy >"$tiny/check.log" 2>&1
    code=$?
    if [ $policy = error ]; then
        train_expected 3 check $code "1 of 13 samples are longer than a row, and data.too_long is error"
    else
        train_expected 0 check $code "sample $tiny/data/5-long.jpg" "too long: "
    fi
    grep -qE "^bad +0$" "$tiny/check.log" && grep -qE "^too long for a row +1$" "$tiny/check.log" ||
        tiny_fail "data check: a long sample is not apart from bad ones: $(cat "$tiny/check.log")"
done
# What is lost with it: the tokens that its answer would have brought.
lost=$(sed -nE 's/^supervised tokens lost +([0-9]+)$/\1/p' "$tiny/check.log")
[ "$(sum drop lost_supervised_tokens)" -eq "$lost" ] || tiny_fail "lost: $(sum drop lost_supervised_tokens), data check: $lost"
"$vlmoe" data check "$tiny/recipe.yaml" batch.tokens=4096 >"$tiny/large.log" 2>&1
[ "$(sed -nE 's/^supervised tokens +([0-9]+)$/\1/p' "$tiny/large.log")" -eq \
    $((lost + $(sed -nE 's/^supervised tokens +([0-9]+)$/\1/p' "$tiny/check.log"))) ] ||
    tiny_fail "$lost tokens lost are not what a larger row brings"
[ "$(metric "$(metrics drop)" bad_samples | tail -n 1)" -eq 0 ] || tiny_fail "too long is not bad"
train_well whole "${walk[@]}" train.steps=12 data.too_long=shrink
[ "$(sum whole dropped_samples)" -eq 1 ] || tiny_fail "text cannot be shrunk, yet it was not dropped"
train error "${walk[@]}" train.steps=12 data.too_long=error
train_expected 3 error $? "$tiny/data/5-long.jpg" "too long" "a row holds 96 tokens"
echo "A picture." >"$tiny/data/5-long.txt"
# exif*.jpg are 64 x 32 pixels, 32 patches; a row of 20 makes them give.
small=("${walk[@]}" train.steps=13 batch.patches=20)
train_well shrink "${small[@]}" data.too_long=shrink
[ "$(sum shrink shrunk_samples)" -ge 1 ] || tiny_fail "no image was shrunk"
[ "$(sum shrink dropped_samples)" -eq 0 ] || tiny_fail "shrinking dropped samples"
train_well cut "${small[@]}" data.too_long=drop train.steps=6
[ "$(sum cut shrunk_samples)" -eq 0 ] || tiny_fail "drop shrank an image"
rm "$tiny"/data/5-long.*

# ---- each cause has its own count: a missing image is bad, not too long ----

said() { printf '{"messages":[%s{"role":"%s","content":%s}%s]}\n' "$@"; }
asked='{"role":"user","content":"q"},'
lines=(data.sources.0.format=openai data.sources.0.prompt= "${walk[@]}")
{ said "$asked" assistant '"x"' ""
  said '{"role":"user","content":[{"type":"image_url","image_url":"none.png"}]},' assistant '"x"' ""
} >"$tiny/z.jsonl"
train_well z "${lines[@]}" data.sources.0.path="$tiny/z.jsonl" train.steps=2
bad=$(metric "$(metrics z)" bad_samples | tail -n 1)
[ "$(sum z too_long_samples) $(sum z unscored_samples) $(sum z dropped_samples)" = "0 0 $bad" ] && [ "$bad" -ge 1 ] ||
    tiny_fail "a missing image: $(cat "$(metrics z)")"
{ said "$asked" assistant '"x"' ""; said "" user '"Nobody?"' ""; } >"$tiny/z.jsonl"
train_well z2 "${lines[@]}" data.sources.0.path="$tiny/z.jsonl" train.steps=2
unscored=$(sum z2 unscored_samples)
[ "$(sum z2 too_long_samples) $(sum z2 dropped_samples)" = "0 $unscored" ] && [ "$unscored" -ge 1 ] &&
    [ "$(metric "$(metrics z2)" bad_samples | tail -n 1)" = 0 ] ||
    tiny_fail "a sample without an answer: $(cat "$(metrics z2)")"
said "" user '"Nobody?"' "" >"$tiny/z.jsonl"
train z3 "${lines[@]}" data.sources.0.path="$tiny/z.jsonl" train.steps=2
train_expected 3 z3 $? "none can be used: no turn of any of them is to be trained on" "it has no assistant turn"
said "$asked" assistant '"x"' ',{"role":"assistant","content":"y"}' | sed 's/"content":"[xy]"/&,"weight":0/g' >"$tiny/z.jsonl"
train z4 "${lines[@]}" data.sources.0.path="$tiny/z.jsonl" train.steps=2
train_expected 3 z4 $? "no turn of any of them is to be trained on" "none of its 2 assistant turns is to be trained on"
"$vlmoe" data check "$tiny/recipe.yaml" "${lines[@]}" data.sources.0.path="$tiny/z.jsonl" >"$tiny/check.log" 2>&1
train_expected 3 check $? "none of 1 sample can be used" "1 have no token to be trained on"

# ---- a poisoned weight: one token's embedding, met in one sample of twelve ----

odd='~'                             # in no other caption
cp tests/data/image/exif1.jpg "$tiny/data/7-odd.jpg"
echo "$odd$odd$odd" >"$tiny/data/7-odd.txt"
train_well start train.steps=1
model=$tiny/runs/start/model
id=$("$vlmoe" data sample "$tiny/recipe.yaml" -n 40 2>/dev/null |
    awk -v name="-- $tiny/data/7-odd.jpg" '$0 == name { on = 1; next } /^-- |^row/ { on = 0 }
        on && $2 ~ /^~/ { print $3; exit }')
[ -n "$id" ] || tiny_fail "the odd token was not found"
file=$model/model.safetensors
size=$(od -An -tu8 -N8 "$file" | tr -d ' ')
from=$(head -c $((size + 8)) "$file" |
    grep -aoE '"model.language_model.embed_tokens.weight":\{[^}]*\[[0-9]+,' | grep -oE '[0-9]+,$' | tr -d ,)
printf '\000\000\300\177' |             # a float that is not a number
    dd of="$file" bs=1 seek=$((8 + size + from + id * 32 * 4)) conv=notrunc 2>/dev/null

train_well poison "${walk[@]}" train.steps=26 model.path="$model"
skipped=$(metric "$(metrics poison)" skipped_steps | tail -n 1)
[ "$skipped" -eq 2 ] || tiny_fail "$skipped steps were skipped, train_expected 2"
[ "$(metric "$(metrics poison)" grad_norm | grep -c null)" -eq 2 ] ||
    tiny_fail "norms of skipped steps are not null"
[ "$(metric "$(metrics poison)" loss | grep -c null)" -eq 2 ] ||
    tiny_fail "losses of skipped steps are not null, or others are"
[ "$(grep -c "gradients are not finite, no update; samples: $tiny/data/7-odd.jpg" "$tiny/poison.log")" -eq 2 ] ||
    tiny_fail "the sample of the skipped step is not named: $(cat "$tiny/poison.log")"
# The limit is of skips in a row: three of them, far apart, are within a limit of two.
train_well apart "${walk[@]}" train.steps=38 model.path="$model" train.nonfinite_limit=2
[ "$(metric "$(metrics apart)" skipped_steps | tail -n 1)" -eq 3 ] ||
    tiny_fail "apart: $(metric "$(metrics apart)" skipped_steps | tail -n 1) steps were skipped, expected 3"
train_well none "${walk[@]}" train.steps=7 model.path="$model" train.nonfinite_limit=1
train zero "${walk[@]}" train.steps=26 model.path="$model" train.nonfinite_limit=0
train_expected 5 zero $? "7-odd.jpg" "train.nonfinite_limit = 0"

# Every step: the run stops after the limit, and says so.
train always model.path="$model" data.sources.0.match='7-odd*' train.steps=20
train_expected 5 always $? "not finite in 4 steps in a row" "train.nonfinite_limit = 3" "7-odd.jpg"
[ "$(wc -l <"$(metrics always)")" -eq 3 ] || tiny_fail "always: $(wc -l <"$(metrics always)") lines of metrics"

# Check mode names the step of the plan that made the first one.
train found device.check=true model.path="$model" data.sources.0.match='7-odd*' train.steps=3
train_expected 5 found $? "compute forward" "embedding" "not finite"
train_well clean device.check=true data.sources.0.match='[1-6]-*' train.steps=3
train_well unchecked data.sources.0.match='[1-6]-*' train.steps=3
same_metrics unchecked clean

# A rate far too high: skipped or not, nothing but numbers and null reaches the record.
train wild optim.lr=10 optim.clip=0 train.steps=20 optim.warmup=0 checkpoint.export=false
code=$?
[ $code -eq 0 ] || [ $code -eq 5 ] || tiny_fail "wild: exit code $code"
grep -qiE ':-?(nan|inf)' "$(metrics wild)" && tiny_fail "wild: metrics that are no JSON"

tiny_end
