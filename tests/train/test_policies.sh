#!/usr/bin/env bash
# test_policies.sh - recompute, offload, freezing and lanes through recipes: the same bits
# as the plain run, and frozen tensors untouched to the byte.
source tests/train/tiny/tiny.sh
tiny_setup

# Pretrained weights to load and to compare frozen tensors with.
train_well start train.steps=2
start=$tiny/runs/start/model

# changed MODEL: a line "part moved|still name" for each tensor: are its bytes $start's?
# (Both files have the same header, and tensors lie in the order of their data.)
changed() {
    local size
    size=$(od -An -tu8 -N8 "$start/model.safetensors" | tr -d ' ')
    { head -c $((size + 8)) "$start/model.safetensors" | tail -c +9 |
          grep -oE '"[^"]+":\{"dtype":"F32","shape":[^}]*\}' |
          sed -E 's/"([^"]+)".*"data_offsets":\[([0-9]+),([0-9]+)\]\}/tensor \1 \2 \3/' |
          sort -n -k 3
      cmp -l "$start/model.safetensors" "$1/model.safetensors"
    } | awk -v data=$((size + 8)) '
        function part(name) {
            if (name ~ /visual\.(deepstack_)?merger/) return "projector"
            if (name ~ /visual\./) return "vision"
            if (name ~ /embed_tokens/) return "embeddings"
            if (name ~ /mlp\.gate\.weight/) return "router"
            if (name ~ /mlp\.(experts\.|shared_expert)/) return "experts"
            return "decoder"
        }
        $1 == "tensor" { name[++n] = $2; to[n] = $4; i = 1; next }
        { while (i < n && $1 - 1 - data >= to[i]) i++
          moved[i] = 1 }
        END { for (i = 1; i <= n; i++)
                  print part(name[i]), (moved[i] ? "moved" : "still"), name[i] }'
}

# frozen_check NAME FROZEN...: those parts stand still, all tensors of the others moved
frozen_check() {
    local run=$1 part state name count=0
    shift
    while read -r part state name; do
        count=$((count + 1))
        local want=moved
        [[ " $* " == *" $part "* ]] && want=still
        [ "$state" = $want ] || tiny_fail "$run: $part tensor $name: $state, expected $want"
    done < <(changed "$tiny/runs/$run/model")
    [ $count -ge 60 ] || tiny_fail "$run: only $count tensors were compared"
}

# Each line: frozen parts | recompute | offload | other settings.  The first line of a
# frozen set is the plain run that the following ones must equal.
number=0 plain= frozen=none runs=0
while IFS='|' read -r freeze recompute offload other; do
    freeze=${freeze# } freeze=${freeze% } recompute=${recompute# } recompute=${recompute% }
    offload=${offload# } offload=${offload% }
    name=mix$((number++))
    # shellcheck disable=SC2086
    train_well $name model.path="$start" train.steps=4 model.freeze="$freeze" \
        memory.recompute="$recompute" memory.offload="$offload" $other || continue
    runs=$((runs + 1))
    if [ "$freeze" != "$frozen" ]; then
        frozen=$freeze plain=$name
        # shellcheck disable=SC2086
        frozen_check $name $freeze
        continue
    fi
    # What a step costs and holds is what a policy may change.
    same_metrics $plain $name "hardware_flops|peak_bytes"
    same_model $plain $name
done <<'MIXES'
 | | | device.single_lane=true
 | decoder.* vision.* projector.* | |
 | * | | device.threads=2
 | decoder.act decoder.mlp_norm vision.act | |
 | | * |
 | | decoder.qkv vision.qkv expert_up | memory.slack=1
 | norm qk_norm act | core_attn | memory.slack=4
 | vision.* | decoder.* | device.single_lane=true
 | expert_up act combine | decoder.residual vision.residual | device.threads=2
vision | | | device.single_lane=true
vision | decoder.* | |
vision | vision.* | decoder.core_attn |
vision projector | | | device.single_lane=true
vision projector | * | |
vision projector | act | expert_up dispatch |
decoder | | | device.single_lane=true
decoder | decoder.* | vision.* |
router experts | | |
router experts | router expert_up | decoder.norm | device.single_lane=true
embeddings | | |
embeddings | decoder.mlp_norm | decoder.act | device.threads=2
vision embeddings decoder router experts | | |
vision embeddings decoder router experts | decoder.* | projector.merge_up |
vision projector embeddings decoder router | | |
vision projector embeddings decoder router | * | | device.single_lane=true
MIXES
[ $runs -eq 25 ] || tiny_fail "$runs of 25 runs"

# What policies are for: they lower the peak, recompute for work, offload for copies.
peak() { metric "$tiny/runs/$1/metrics.jsonl" peak_bytes | tail -n 1; }
work() { metric "$tiny/runs/$1/metrics.jsonl" hardware_flops | tail -n 1; }
[ "$(peak mix1)" -lt "$(peak mix0)" ] || tiny_fail "recompute: peak $(peak mix1), plain $(peak mix0)"
[ "$(peak mix4)" -lt "$(peak mix0)" ] || tiny_fail "offload: peak $(peak mix4), plain $(peak mix0)"
awk "BEGIN { exit !($(work mix1) > $(work mix0)) }" || tiny_fail "recompute costs no work"
[ "$(work mix4)" = "$(work mix0)" ] || tiny_fail "offload changed the work of a step"
[ "$(peak mix12)" -lt "$(peak mix0)" ] || tiny_fail "freezing vision does not lower the peak"
awk "BEGIN { exit !($(work mix12) < $(work mix0)) }" || tiny_fail "a frozen tower costs as much"

# Everything frozen is a recipe that trains nothing.
train nothing model.freeze="vision projector embeddings decoder router experts"
[ $? -eq 2 ] || tiny_fail "all parts frozen: not refused with 2"
holds "$tiny/nothing.log" "nothing would train"

tiny_end
