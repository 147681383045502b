#!/usr/bin/env bash
# test_generate.sh - answers do not depend on the layout, on what else is answered at the
# same time, nor on how much room there is; they end at their end token; what has no room is
# refused.
#
#     test_generate.sh VLMOE
source tests/train/tiny/tiny.sh
tiny_setup
out=$tiny/out.txt

train_well run train.steps=60 optim.lr=3e-2 checkpoint.every=0 batch.rows=2
model=$tiny/runs/run/model

# answers FILE [options and overrides...]: to training samples, data and model a line each
answers() {
    local to=$1
    shift
    timeout 60 "$vlmoe" eval "$tiny/recipe.yaml" --model "$model" --training \
        --samples "${samples:-24}" sample.tokens=40 "$@" >"$to" 2>"$tiny/err.txt" ||
        tiny_fail "eval $*: exit code $?: $(tail -n 2 "$tiny/err.txt")"
}

# ---- layouts ----

answers "$tiny/one.txt"
[ "$(grep -c '    model: ' "$tiny/one.txt")" -eq 24 ] || tiny_fail "not 24 answers"
[ "$(grep '    model: ' "$tiny/one.txt" | sort -u | wc -l)" -ge 3 ] ||
    tiny_fail "all answers are alike: $(head -n 6 "$tiny/one.txt")"
ranks=(2 4 2 2 2 2 4 4 4 8 3)
layout=(
    "parallel.dp=2 parallel.shard=parameters parallel.prefetch=1"
    "parallel.dp=4"
    "parallel.tp=2"
    "parallel.cp=2"
    "parallel.cp=2 parallel.cp_ring=true"
    "parallel.pp=2"
    "parallel.ep=2 parallel.etp=2 moe.dispatcher=allgather"
    "parallel.ep=4"
    "parallel.pp=2 parallel.tp=2 parallel.shard=optimizer"
    "parallel.cp=2 parallel.tp=2 parallel.ep=4"
    "parallel.pp=3"
)
for i in "${!layout[@]}"; do
    # shellcheck disable=SC2086
    answers "$out" --ranks "${ranks[i]}" ${layout[i]}
    cmp -s "$tiny/one.txt" "$out" ||
        tiny_fail "${layout[i]}: $(diff "$tiny/one.txt" "$out" | head -n 4)"
done

# Fewer answers than ranks that could give some.
samples=3 answers "$out" --ranks 4 parallel.dp=4
cmp -s <(grep '    model: ' "$tiny/one.txt" | head -n 3) <(grep '    model: ' "$out") ||
    tiny_fail "3 answers of 4 ranks: $(head -n 9 "$out")"

# ---- what else is under way, and how it is packed ----

answers "$out" batch.tokens=48 batch.patches=64     # several caches full, one after another
cmp -s "$tiny/one.txt" "$out" || tiny_fail "short rows: $(diff "$tiny/one.txt" "$out" | head -n 4)"
answers "$out" batch.tokens=2048 batch.patches=2048 batch.samples=64 batch.images=64
cmp -s "$tiny/one.txt" "$out" || tiny_fail "one row: $(diff "$tiny/one.txt" "$out" | head -n 4)"
answers "$out" device.check=true
cmp -s "$tiny/one.txt" "$out" || tiny_fail "check: $(diff "$tiny/one.txt" "$out" | head -n 4)"

# alone IMAGE TOKENS [overrides...]: one answer, to the recipe's prompt
alone() {
    local image=$1 tokens=$2
    shift 2
    timeout 60 "$vlmoe" generate "$model" --image "$image" --prompt "What is this?" \
        --tokens "$tokens" data.min_pixels=256 data.max_pixels=4096 "$@"
}
compared=0
while read -r _ image && read -r _ && IFS= read -r line; do
    [ $((compared++)) -lt 4 ] || continue
    [ "$(alone "$image" 40)" = "${line#    model: }" ] || tiny_fail "$image alone: $(alone \
        "$image" 40), among others $line"
    last=$image
done <"$tiny/one.txt"
[ $compared -eq 24 ] || tiny_fail "$compared answers were listed"

# ---- an end token ends an answer, a limit cuts it; an answer may outgrow a row ----

short=$(alone "$last" 3) whole=$(alone "$last" 40) long=$(alone "$last" 400 batch.tokens=48)
[ "${whole:0:${#short}}" = "$short" ] && [ ${#short} -lt ${#whole} ] ||
    tiny_fail "3 tokens '$short' of '$whole'"
[ "$whole" = "$long" ] || tiny_fail "no end: '$long' after '$whole'"
# The end of a turn ends an answer whatever the config's end tokens are, and so do these.
ends() { sed -i -E "s/\"eos_token_id\": *(\[[^]]*\]|[0-9]+)/\"eos_token_id\": $1/" "$model/config.json"; }
cp "$model/config.json" "$tiny/config.json"
ends 1269
[ "$(alone "$last" 40)" = "$whole" ] || tiny_fail "the end of a turn: '$(alone "$last" 40)', expected '$whole'"
first=$(sed -nE 's/.*"A": *([0-9]+).*/\1/p' "$model/tokenizer.json" | head -n 1)
[ "${whole:0:1}" = A ] || tiny_fail "the answer begins otherwise: '$whole'"
ends "[1269, $first]"
[ -z "$(alone "$last" 40)" ] || tiny_fail "an end token of the config: '$(alone "$last" 40)'"
cp "$tiny/config.json" "$model/config.json"
# generation_config.json counts before it, which is said; the same said twice is no news.
generation() { printf '{"eos_token_id": %s, "top_k": 20}' "$1" >"$model/generation_config.json"; }
generation "[1269, $first]"
[ -z "$(alone "$last" 40 2>"$out")" ] || tiny_fail "an end token of generation_config.json"
holds "$out" "eos_token_id is not the same in config.json and generation_config.json; the latter counts"
ends "[$first, 1269]"
alone "$last" 40 >/dev/null 2>"$out"
grep -q eos_token_id "$out" && tiny_fail "the same end tokens twice: $(cat "$out")"
generation 1269
[ "$(alone "$last" 40 2>/dev/null)" = "$whole" ] || tiny_fail "an end token of the config ends all the same"
generation null
[ -z "$(alone "$last" 40 2>"$out")" ] || tiny_fail "generation_config.json without an end token ends otherwise"
for bad in '"</s>"' -1 1.5 99999; do
    generation "$bad"
    alone "$last" 4 >"$out" 2>&1
    expected 4 "eos_token_id $bad" $? "$out" "eos_token_id"
done
rm "$model/generation_config.json"
cp "$tiny/config.json" "$model/config.json"
# A model without an answer to end: weights as they begin.
endless() { timeout 60 "$vlmoe" generate "$tiny/fresh" --prompt Hm --tokens "$1" "${@:2}"; }
train_well fresh train.steps=1 optim.lr=1e-9 checkpoint.every=0
cp -r "$tiny/runs/fresh/model" "$tiny/fresh"
far=$(endless 300 batch.tokens=32) near=$(endless 20)
[ ${#far} -gt $((4 * ${#near})) ] && [ "${far:0:${#near}}" = "$near" ] ||
    tiny_fail "300 tokens: '$far', 20: '$near'"

# ---- beyond the positions that the model was made for: given, and warned of, once ----

made_for() {
    sed -E "s/(\"vocab_size\": *[0-9]+,)/\\1 \"max_position_embeddings\": $1,/" "$model/config.json" \
        >"$tiny/fresh/config.json"
    holds "$tiny/fresh/config.json" "\"max_position_embeddings\": $1,"
}
for positions in 30 100000; do
    made_for $positions
    there=$(endless 60 2>"$out")
    [ -n "$there" ] && [ "${far:0:${#there}}" = "$there" ] || tiny_fail "made for $positions: '$there'"
    if [ $positions -eq 30 ]; then
        expected 0 "beyond 30" 0 "$out" "1 of 1 answers go beyond max_position_embeddings 30"
        [ "$(wc -l <"$out")" -eq 1 ] || tiny_fail "not one warning: $(cat "$out")"
    else
        grep -q max_position "$out" && tiny_fail "within its positions: $(cat "$out")"
    fi
done

# ---- a prompt takes the row it needs; a limit that is given holds ----

timeout 60 "$vlmoe" generate "$model" --prompt "$(printf 'word %.0s' {1..1500})" \
    --tokens 2 >"$out" 2>&1 || tiny_fail "more tokens than batch.tokens is by default: $(cat "$out")"

timeout 60 "$vlmoe" generate "$model" --prompt "$(printf 'word %.0s' {1..100})" \
    batch.tokens=64 >"$out" 2>&1
expected 3 "a long prompt" $? "$out" "tokens" "a row holds 64" "batch.tokens"
endless 2000000 >"$out" 2>&1
expected 2 "too long an answer" $? "$out" "at most 1048576"
alone "$last" 5 batch.patches=4 data.min_pixels=2048 >"$out" 2>&1
expected 3 "a large image" $? "$out" "patches" "batch.patches"
tiny_end
