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
# 16 samples twice; beyond that only what shares rows with the last of them.
samples=$(sum two samples)
[ "$samples" -ge 32 ] && [ "$samples" -le 40 ] || tiny_fail "two epochs of 16 samples took $samples"
[ "$(last two epoch)" -le 3 ] || tiny_fail "epoch $(last two epoch)"
holds "$tiny/two.log" "step $(last two step)/$(last two step)  loss" "the last step"
[ -s "$tiny/runs/two/model/model.safetensors" ] && [ -n "$(last two eval_loss)" ] ||
    tiny_fail "the last step of a run by epochs is not its last"
# The rate falls with the data that is done, to the floor.
[ "$(last two lr)" = 0.001 ] || tiny_fail "the last rate is $(last two lr)"
train_well one "${law[@]}" train.epochs=1
[ "$(last one step)" -lt "$(last two step)" ] || tiny_fail "one epoch is as long as two"
[ "$(sum one samples)" -ge 16 ] || tiny_fail "one epoch has $(sum one samples) samples"

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
[ "$(sum two samples)" -ge 48 ] || tiny_fail "a third epoch: $(sum two samples) samples"

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
