#!/usr/bin/env bash
# test_epochs.sh - a run by passes over the data: ends once every sample was trained on so
# often, alike on any number of ranks and after a stop, and says what a schedule cannot mean.
source tests/train/tiny/tiny.sh
tiny_setup
rm -r "$tiny/data"
tiny_data "$tiny/data" 20
metrics() { echo "$tiny/runs/$1/metrics.jsonl"; }
sum() { metric "$(metrics "$1")" "$2" | awk '{ n += $1 } END { print n + 0 }'; }
last() { metric "$(metrics "$1")" "$2" | tail -n 1; }

law=(run.log=info checkpoint.every=2 batch.rows=2 data.window=4 eval.every=3 data.hold_out=5)
train_well two "${law[@]}" train.epochs=2
# 16 samples twice, not one more.
[ "$(sum two samples)" -eq 32 ] || tiny_fail "two epochs of 16 samples took $(sum two samples)"
[ "$(last two epoch)" -eq 2 ] || tiny_fail "epoch $(last two epoch)"
holds "$tiny/two.log" "step $(last two step)/$(last two step)  loss" "the last step"
[ -s "$tiny/runs/two/model/model.safetensors" ] && [ -n "$(last two eval_loss)" ] ||
    tiny_fail "the last step of a run by epochs is not its last"
# The rate falls with the data that is done, to the floor.
[ "$(last two lr)" = 0.001 ] || tiny_fail "the last rate is $(last two lr)"
train_well one "${law[@]}" train.epochs=1
[ "$(last one step)" -lt "$(last two step)" ] || tiny_fail "one epoch is as long as two"
[ "$(sum one samples)" -eq 16 ] || tiny_fail "one epoch has $(sum one samples) samples"

# From the middle, and on two ranks: the same steps.
train_well again "${law[@]}" train.epochs=2
(cd "$tiny/runs/again" && rm -r model report.html "checkpoints/$(ls -v checkpoints | tail -n 1)")
train again "${law[@]}" train.epochs=2
train_expected 0 again $? "resumed from"
same_metrics two again
same_model two again
train_well ranks "${law[@]}" train.epochs=2 --ranks 2
[ "$(metric "$(metrics ranks)" order | cksum)" = "$(metric "$(metrics two)" order | cksum)" ] ||
    tiny_fail "two ranks take other steps than one"
holds "$tiny/ranks.log" "of all 2 ranks" "rates of two ranks"
grep -q "of all" "$tiny/two.log" && tiny_fail "rates of one rank are of all"
train two "${law[@]}" train.epochs=2
train_expected 0 two $? "is already done" "raise train.epochs"
train two "${law[@]}" train.epochs=3
train_expected 0 two $? "changed since step" "train.epochs 2 -> 3"
[ "$(sum two samples)" -eq 48 ] || tiny_fail "a third epoch: $(sum two samples) samples"

# ---- exactly so many, however far the loader looks ahead and however large a step is ----

tiny_data "$tiny/few" 3
few=(data.sources.0.path="$tiny/few" data.window=64 run.log=info)
for epochs in 1 2 5; do
    for rows in 1 2 4; do
        name=few-$epochs-$rows
        train_well "$name" "${few[@]}" train.epochs=$epochs batch.rows=$rows checkpoint.every=1
        [ "$(sum "$name" samples)" -eq $((3 * epochs)) ] ||
            tiny_fail "$name: $(sum "$name" samples) samples, not 3 times $epochs"
        grep -q null "$(metrics "$name")" && tiny_fail "$name: $(grep null "$(metrics "$name")" | head -n 1)"
    done
done
# Steps that are not full are the same on ranks; and after them a run goes on.
train_well spread "${few[@]}" train.epochs=2 batch.rows=4 --ranks 4 parallel.dp=4
[ "$(metric "$(metrics spread)" order)" = "$(metric "$(metrics few-2-4)" order)" ] &&
    [ "$(sum spread samples)" -eq 6 ] || tiny_fail "four ranks: $(sum spread samples) samples"
train few-2-4 "${few[@]}" train.epochs=5 batch.rows=4 checkpoint.every=1
train_expected 0 few-2-4 $? "train.epochs 2 -> 5"
[ "$(sum few-2-4 samples)" -eq 15 ] || tiny_fail "from 2 epochs to 5: $(sum few-2-4 samples) samples"
# What is last in the last pass is of no use: the step before was the last, and ends the run.
tiny_data "$tiny/last" 3
echo no >"$tiny/last/$(ls "$tiny/last" | grep -v txt | sort | tail -n 1)"
train_well useless "${few[@]}" data.sources.0.path="$tiny/last" data.shuffle=false data.window=1 \
    batch.rows=1 batch.samples=1 train.epochs=1 eval.every=0 sample.every=100 sample.count=1 checkpoint.every=1
[ "$(sum useless samples)" -eq 2 ] && [ -s "$tiny/runs/useless/model/model.safetensors" ] &&
    [ -s "$tiny/runs/useless/samples/step-2.jsonl" ] || tiny_fail "useless: $(cat "$tiny/useless.log")"
train useless "${few[@]}" data.sources.0.path="$tiny/last" data.shuffle=false data.window=1 \
    batch.rows=1 batch.samples=1 train.epochs=1 eval.every=0 sample.every=100 sample.count=1 checkpoint.every=1
train_expected 0 useless $? "is already done, 2 steps"

# ---- schedules that cannot be meant ----

for schedule in cosine constant wsd; do
    train warm train.steps=2 optim.schedule=$schedule optim.warmup=2 run.log=info checkpoint.export=false
    train_expected 0 warm $? "optim.warmup 2 is not below train.steps 2" "only rises, to 1 of optim.lr 0.01"
    rm -r "$tiny/runs/warm"
done 2>/dev/null
train warm train.steps=3 optim.warmup=6 checkpoint.export=false
train_expected 0 warm $? "only rises, to 0.5 of optim.lr"
train flat train.steps=2 optim.lr=0 checkpoint.export=false
train_expected 0 flat $? "optim.lr is 0: nothing is learnt"
train_well fine train.steps=6 optim.warmup=5 checkpoint.export=false
grep -q warmup "$tiny/fine.log" && tiny_fail "a warmup that ends is warned of"
train nan optim.epsilon=0
train_expected 2 nan $? "optim.epsilon = 0 is outside"

tiny_end
