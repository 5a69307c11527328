# grade.bash start|wait NAME SWEEP REWARD MOST TESTS TESTBYTES LIMIT PATIENCE KEPT WORKDIR RUNNER STAGED [SHA256]
# With `start`: sweep, clear REWARD, put TESTBYTES of the input at TESTS (-1: none), and run the rest of the input as the
# test command, detached, at most once. Then wait for it, PATIENCE seconds at the most; when it has ended, sweep again and
# read MOST bytes of REWARD. All of it happens in this one shell, which no start-up file has touched. STAGED is a file that
# holds the input, with its checksum; empty: the input is standard input.
# Asked again with the same NAME, also with `start`, it only waits for what runs already.
mode=$1 name=$2 sweeps=$3 reward=$4 most=$5 tests=$6 test_bytes=$7 limit=$8
shift 8
patience=$1 kept_bytes=$2 workdir=$3 runner=$4 staged=$5 checksum=${6-}
swept=kept

answer() {
  answer_begins
  printf 'state %s\nswept %s %s\n' "$1" "$swept" "$killed"
  printf 'complaint %s\n' "${2//$'\n'/ }"
}

over() {
  answer "$@"
  answer_ends
  exit 0
}

find_folder() {
  local base
  folder=
  for base in /tmp /var/tmp /dev/shm ''; do
    [[ -d $base/$name ]] && folder=$base/$name && return
  done
  [[ $mode == start ]] || return
  for base in /tmp /var/tmp /dev/shm ''; do
    mkdir -m 700 -- "$base/$name" 2>/dev/null && folder=$base/$name && return
  done
}

run_sweep() {
  local worse=$swept
  [[ $sweeps == sweep ]] || return 0
  sweep
  # Of two sweeps the worse one is told.
  [[ $worse == incomplete || ($worse == skipped && $swept == done) ]] && swept=$worse
}

prepare() {
  local complaint size
  run_sweep
  complaint=$({
    rm -rf -- "$reward"
    mkdir -p -- "${reward%/*}/"
  } 2>&1)
  [[ ! -e $reward && ! -L $reward && -d ${reward%/*}/ ]] || over uncleared "$complaint"
  if [[ -n $staged ]]; then
    size=$(sha256sum 2>&1 <"$staged")
    [[ ${size%% *} == "$checksum" ]] || over uninstalled 'the staged tests are not what was sent'
    exec <"$staged"
  fi
  if ((test_bytes >= 0)); then
    complaint=$(place_input "$tests" 0 "$test_bytes" 2>&1)
    size=${complaint##*$'\n'}
    [[ ${size//[^0-9]/} == "$test_bytes" ]] || over uninstalled "$complaint"
  fi
  cat >"$folder/command" 2>/dev/null || over refused
  printf '%s %s\n' "$swept" "$killed" >"$folder/swept"
}

start() {
  local words
  prepare
  # Before it is started, so that it is never started twice.
  : >"$folder/started" || over refused
  words=(/bin/bash --noprofile --norc -c "$runner" primebeaker-tests "$folder" "$limit" "$workdir")
  # A request returns when every holder of its streams is gone, so the runner gets none of them.
  if type -P setsid >/dev/null; then
    setsid "${words[@]}" </dev/null >/dev/null 2>&1 &
  else
    set -m
    "${words[@]}" </dev/null >/dev/null 2>&1 &
    set +m
  fi
  printf '%s\n' "$!" >"$folder/runner"
}

await_end() {
  local nap=0.02 naps=0 pid end=$((SECONDS + patience))
  while [[ ! -e $folder/result ]]; do
    pid=
    { read -r pid <"$folder/runner"; } 2>/dev/null
    if [[ -z $pid ]] || is_dead "$pid"; then
      [[ -e $folder/result ]] || state=gone
      return
    fi
    ((SECONDS >= end)) && return 1
    sleep "$nap"
    naps=$((naps + 1))
    ((naps < 20)) || nap=0.2
  done
}

tell_reward() {
  local kind=irregular
  if [[ -L $reward ]]; then
    kind=irregular
  elif [[ ! -e $reward ]]; then
    kind=absent
  elif [[ -f $reward ]]; then
    kind=regular
  fi
  printf 'reward %s ' "$kind"
  [[ $kind == regular ]] && head -c "$most" -- "$reward" | od -An -v -tx1 | tr -d '\n'
}

folder=
restore_startup_files "$name"
find_folder
[[ -n $folder ]] || over refused
[[ -e $folder/started || $mode == wait ]] || start
{ read -r swept killed <"$folder/swept"; } 2>/dev/null
state=finished
if ! await_end; then
  hide_startup_files "$name"
  over waiting
fi
run_sweep
result=
{ read -r result <"$folder/result"; } 2>/dev/null
answer "$state" ''
printf 'result %s\n' "$result"
tell_reward
for stream in stdout stderr; do
  size=$(wc -c 2>/dev/null <"$folder/$stream")
  printf '\n%s %s\n' "$token" "${size//[^0-9]/}"
  tail -c "$kept_bytes" "$folder/$stream" 2>/dev/null
done
answer_ends
