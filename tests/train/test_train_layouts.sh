#!/usr/bin/env bash
# test_train_layouts.sh - ten layouts train as one rank does, and each goes on from what
# another one saved; what ends one rank ends all.
#
#     test_train_layouts.sh VLMOE [all]
#
# all: every layout goes on from every other one's state, else from that before it.
source tests/train/tiny/tiny.sh
tiny_setup

# The larger epsilon: AdamW's first steps are the sign of a gradient, however small, and
# where it is zero but for rounding that sign differs from layout to layout.  The name:
# else the order of samples would follow from where the temporary folder is.
law=(batch.rows=4 train.steps=6 checkpoint.every=3 checkpoint.keep=0 checkpoint.export=false
    optim.epsilon=1e-4 moe.z_coef=0.01 data.sources.0.name=tiny)
ranks=(4 4 4 2 4 2 8 8 4 7)
layout=(
    "parallel.shard=parameters parallel.prefetch=2 parallel.weave=true"
    "parallel.shard=gradients parallel.reduce=last parallel.replicate=2"
    "parallel.tp=2 parallel.shard=optimizer"
    "parallel.cp=2 parallel.cp_ring=true memory.recompute=decoder.*"
    "parallel.ep=2 parallel.etp=2 moe.dispatcher=allgather"
    "parallel.pp=2 parallel.zero_bubble=true"
    "parallel.pp=2 parallel.tp=2 parallel.ep=4 parallel.reduce=last moe.overlap_shared=true"
    "parallel.cp=2 parallel.tp=2 parallel.ep=4 parallel.keep_weights=true parallel.delay_weights=true"
    "parallel.pp=4 parallel.stages=V,2,1,H"             # more stages than decoder layers
    "parallel.pp=7"                                     # as many as there can be
)

# near NAME KEY MOST FROM: one rank's figures within MOST, and its samples, from step FROM on
near() {
    local a="$tiny/runs/one/metrics.jsonl" b="$tiny/runs/$1/metrics.jsonl" off
    cmp -s <(metric "$a" order | tail -n "+$4") <(metric "$b" order | tail -n "+$4") ||
        tiny_fail "$1: other samples than one rank"
    off=$(paste <(metric "$a" "$2") <(metric "$b" "$2") | tail -n "+$4" | awk '
        { d = $1 - $2; if (d < 0) d = -d; if (NF != 2) d = 1e9
          r = $1 ? d / ($1 < 0 ? -$1 : $1) : d; if (!(r <= most)) most = r }
        END { printf "%.2g", NR ? most : 1e9 }')
    awk -v off="$off" -v most="$3" 'BEGIN { exit !(off <= most) }' ||
        tiny_fail "$1: $2 is off by $off: $(paste <(metric "$a" "$2") <(metric "$b" "$2") |
            tr '\n' ';')"
    awk -v off="$off" -v worst="${worst[$2]:-0}" 'BEGIN { exit !(off > worst) }' &&
        worst[$2]=$off
}
declare -A worst

# judge NAME FROM
judge() {
    near "$1" loss 1e-6 "$2"
    near "$1" grad_norm 1e-5 "$2"
    near "$1" aux_loss 1e-5 "$2"
    near "$1" supervised_tokens 0 "$2"
}

# goes_on I J: layout I from what J (or one rank) had saved after step 3
goes_on() {
    local name="$1-from-$2"
    mkdir -p "$tiny/runs/$name/checkpoints"
    cp -r "$tiny/runs/$2/checkpoints/step-3" "$tiny/runs/$name/checkpoints/"
    head -n 3 "$tiny/runs/$2/metrics.jsonl" >"$tiny/runs/$name/metrics.jsonl"
    # shellcheck disable=SC2086
    train_well "$name" --ranks "${ranks[$1]}" "${law[@]}" run.log=info ${layout[$1]} || return
    holds "$tiny/$name.log" "resumed from"
    judge "$name" 4
    resumed=$((resumed + 1))
    rm -rf "$tiny/runs/$name"
}
resumed=0

train_well one "${law[@]}"
for i in "${!layout[@]}"; do
    # shellcheck disable=SC2086
    train_well "$i" --ranks "${ranks[i]}" "${law[@]}" ${layout[i]}
    judge "$i" 1
done
goes_on 0 one
goes_on 7 one
for i in "${!layout[@]}"; do
    for j in "${!layout[@]}"; do
        [ "$i" -ne "$j" ] || continue
        [ "${2:-}" = all ] || [ "$j" -eq $(((i + 9) % 10)) ] || continue
        goes_on "$i" "$j"
    done
done
ranks+=(1) layout+=("")            # and one rank from eight
goes_on 10 7
echo "$resumed resumed; worst: $(for key in "${!worst[@]}"; do
    printf '%s %s ' "$key" "${worst[$key]}"; done)"
[ $resumed -eq "$([ "${2:-}" = all ] && echo 93 || echo 13)" ] ||
    tiny_fail "$resumed resumed"

# A late sample that is longer than a row: one rank meets it, all end, one tells; a state
# that is being written meanwhile gets finished.
mkdir "$tiny/long"
cp "$tiny"/data/* "$tiny/long"
cp tests/data/image/base_444.jpg "$tiny/long/z-last.jpg"
printf 'word %.0s' {1..200} >"$tiny/long/z-last.txt"
for i in 0 2 6; do
    # shellcheck disable=SC2086
    timeout 60 "$vlmoe" train "$tiny/recipe.yaml" run.name="long$i" --ranks "${ranks[i]}" \
        "${law[@]}" ${layout[i]} train.steps=100 data.sources.0.path="$tiny/long" \
        data.shuffle=false data.too_long=error data.window=1 checkpoint.every=1 \
        >"$tiny/long$i.log" 2>&1
    code=$?
    [ $code -eq 3 ] || tiny_fail "too long in layout $i: exit code $code"
    holds "$tiny/long$i.log" "z-last"
    [ "$(grep -c '^vlmoe: ' "$tiny/long$i.log")" -eq 1 ] ||
        tiny_fail "layout $i told otherwise: $(tail -n 5 "$tiny/long$i.log")"
    [ "$(metric "$tiny/runs/long$i/metrics.jsonl" step | wc -l)" -ge 2 ] ||
        tiny_fail "layout $i ended before that sample was met"
    last=$(metric "$tiny/runs/long$i/metrics.jsonl" step | tail -n 1)
    [ "$(ls -A "$tiny/runs/long$i/checkpoints" | sort -V | tail -n 1)" = "step-$last" ] ||
        tiny_fail "layout $i did not finish writing the state of step $last"
done

tiny_end
