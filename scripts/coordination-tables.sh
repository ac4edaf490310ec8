#!/bin/sh
# Prints the rows of the tables in docs/coordination.md: `weir simulate` for each of them, in Markdown.
#
#   cargo build --release && scripts/coordination-tables.sh target/release/weir
set -eu
weir=${1:-target/release/weir}

# the fields of a mode's line: overshoot / used / rejected early / calls / waited
row() {
    mode=$1
    shift
    "$weir" simulate --coordination "$mode" "$@" | awk -v mode="$mode" '$1 == mode {
        gsub(/ %/, "%"); gsub(/%/, " %"); n = split($0, field, /  +/)
        printf " %s / %s / %s / %s / %s |", field[2], field[3], field[4], field[5], field[6]
    }'
}

table() {
    modes=$1
    title=$2
    shift 2
    printf '| %s |' "$title"
    for mode in $modes; do row "$mode" "$@"; done
    printf '\n'
}

echo 'fields: worst overshoot / least used share / rejected early / calls a decision / decisions that wait'
echo
echo '| many keys | auto | interval | lease | strict |'
echo '| --- | --- | --- | --- | --- |'
many() { table 'auto interval lease strict' "$@"; }
many '1 instance, 10 in 1 s, 0.7x' --instances 1 --limit 10 --load 0.7 --keys 1000
many '3 instances, 10 in 1 s, 0.7x' --instances 3 --limit 10 --load 0.7 --keys 1000
many '3 instances, 10 in 1 s, 2x' --instances 3 --limit 10 --load 2 --keys 1000
many '3 instances, 10 in 1 s, 2x, sliding window' --instances 3 --limit 10 --load 2 --keys 1000 --algorithm sliding_window
many '3 instances, 10 in 1 s, 2x, token bucket' --instances 3 --limit 10 --load 2 --keys 1000 --algorithm token_bucket
many '2 instances, 3 in 1 min, 12 at once' --instances 2 --limit 3 --period 1m --load 4 --arrivals at-once --keys 500 --windows 3
many '3 instances, 150 in 1 min, 10x at once' --instances 3 --limit 150 --period 1m --load 10 --arrivals at-once --keys 10 --windows 2
many '10 instances, 500 in 1 min, 2x at once' --instances 10 --limit 500 --period 1m --load 2 --arrivals at-once --keys 20 --windows 2
echo
echo '| one key | auto | interval | lease |'
echo '| --- | --- | --- | --- |'
one() { table 'auto interval lease' "$@" --keys 1; }
for skew in even zipf; do
    one "3 instances, 1,000 in 1 s, 2x, $skew" --instances 3 --limit 1000 --load 2 --skew $skew
    one "10 instances, 1,000 in 1 s, 10x, $skew" --instances 10 --limit 1000 --load 10 --skew $skew
    one "10 instances, 1,000 in 10 s, 2x, $skew" --instances 10 --limit 1000 --period 10s --load 2 --skew $skew
    one "96 instances, 10,000 in 1 s, 2x, $skew" --instances 96 --limit 10000 --load 2 --windows 3 --skew $skew
done
one 'sliding window, 5 instances, 1,000 in 1 s, 2x' --instances 5 --limit 1000 --load 2 --algorithm sliding_window
one 'sliding window, 10 instances, 1,000 in 1 s, 10x' --instances 10 --limit 1000 --load 10 --algorithm sliding_window
one 'token bucket, 5 instances, 1,000 in 1 s, 2x' --instances 5 --limit 1000 --load 2 --algorithm token_bucket
one 'token bucket, 10 instances, 1,000 in 1 s, 10x' --instances 10 --limit 1000 --load 10 --algorithm token_bucket

# the worst of all loads, spreads and seeds
worst() {
    algorithm=$1
    instances=$2
    limit=$3
    for load in 2 5 10; do
        for skew in even zipf; do
            for seed in $seeds; do
                "$weir" simulate --coordination auto --keys 1 --instances "$instances" --limit "$limit" --load "$load" --skew "$skew" \
                    --algorithm "$algorithm" --windows 4 --seed "$seed"
            done
        done
    done | awk '$1 == "auto" {
        gsub(/ %/, "%"); split($0, field, /  +/)
        over = field[2] + 0; waited = field[6] + 0
        if (over > most) most = over
        if (waited > longest) longest = waited
    } END { printf " %s %% / %s %% |", most + 0, longest + 0 }'
}

echo
echo 'fields: worst overshoot / most decisions that wait, at 2, 5 and 10 times the limit, evenly and by Zipf'"'"'s law'
echo
echo '| auto | fixed window | sliding window | token bucket |'
echo '| --- | --- | --- | --- |'
for instances in 2 10 96; do
    seeds='1 2 3 4 5'
    test "$instances" -lt 96 || seeds=1
    limit=$((75 * instances))
    printf '| %s instances, %s in 1 s |' "$instances" "$limit"
    for algorithm in fixed_window sliding_window token_bucket; do worst "$algorithm" "$instances" "$limit"; done
    printf '\n'
done
