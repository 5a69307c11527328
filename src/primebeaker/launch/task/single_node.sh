# The single-node task. The launcher puts two assignments before this text: `kind` (sft or rl) and `prepare_sft` (a
# Python program). Everything else comes from the environment, so that no user text is ever read as shell code.
set -euo pipefail

# Tool services that must be stopped when the task ends: their id and the token for it are kept from every process
# that is started, and whatever ends the task before `rl` has a keeper of its own stops them.
services=${PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID:-}
child=
if [ -n "$services" ]; then
  export -n PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID BEAKER_TOKEN
  trap 'stop_services $?' EXIT
  trap 'end_child; exit 143' TERM
  trap 'end_child; exit 130' INT
fi

with_services() {
  export PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID BEAKER_TOKEN
  "$@"
}

# shellcheck disable=SC2317 # called by a trap
stop_services() {
  trap - EXIT
  (with_services python3 -m primebeaker.multinode stop-services) || true
  exit "$1"
}

# shellcheck disable=SC2317 # called by a trap
end_child() {
  [ -n "$child" ] || return 0
  kill -- "-$child" 2>/dev/null || return 0
  sleep 1
  kill -KILL -- "-$child" 2>/dev/null || true
}

stop_with() {
  echo "primebeaker: error: $2" >&2
  exit "$1"
}

# The setup text runs in a shell of its own: neither its options nor its traps nor a plain `exit` reach this one.
# What it exported comes back, except the variables the launch itself stands on.
run_setup() {
  local exported code=0 entry
  exported=$(mktemp)
  # Job control gives it a process group of its own, which a signal can end as a whole.
  set -m
  # shellcheck disable=SC2016 # expanded by the inner shell
  bash -c 'trap "env -0 >\"\$0\"" EXIT; set -e; eval "$PRIMEBEAKER_SETUP_COMMAND"' "$exported" </dev/null &
  child=$!
  set +m
  # Unlike a program in the foreground, `wait` lets a signal through.
  wait "$child" || code=$?
  child=
  if [ "$code" -ne 0 ]; then
    rm -f "$exported"
    stop_with "$code" "the setup command (--setup-command) failed with code $code"
  fi
  while IFS= read -r -d '' entry; do
    case ${entry%%=*} in
      BEAKER_* | PRIMEBEAKER_* | _ | PWD | OLDPWD | SHLVL | HOME | CONFIG_PATH | OUTPUT_DIR | EXPERIMENT_NAME | \
        NUM_GPUS | WORKING_DIR | SCRATCH | LAUNCH_ID | REGISTRY | GATEWAY_PORT | GATEWAY_WORKERS | \
        REQUIRED_LITEREGISTRY_SERVICES | LOCAL_SEARCH_MODEL_PATHS_JSON | WANDB_RUN_ID | WANDB_RESUME | \
        WANDB_SHARED_RUN_ID | WANDB_ENTITY) ;;
      *[!A-Za-z0-9_]* | [0-9]* | '') ;;
      *) export "${entry?}" ;;
    esac
  done <"$exported"
  rm -f "$exported"
}

# A TMPDIR that the user names need not exist in the image.
mkdir -p /tmp/beaker-result "${TMPDIR:-/tmp}"
cd "$WORKING_DIR" || stop_with 2 "the working directory $WORKING_DIR (--working-dir) cannot be entered"

if [ -n "${PRIMEBEAKER_SETUP_COMMAND:-}" ]; then
  run_setup
fi

command -v "$kind" >/dev/null || stop_with 2 "the image lacks Prime-RL's program '$kind'"
if [ "$kind" = rl ]; then
  python3 -c 'import primebeaker' 2>/dev/null || stop_with 2 "the image lacks the Python package 'primebeaker'"
fi

export XDG_CACHE_HOME="${XDG_CACHE_HOME:-$SCRATCH/.cache}"
export HF_HOME="${HF_HOME:-$XDG_CACHE_HOME/huggingface}"
export TORCH_HOME="${TORCH_HOME:-$XDG_CACHE_HOME/torch}"
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$TORCH_HOME/inductor}"
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$XDG_CACHE_HOME/triton}"
export VLLM_CACHE_ROOT="${VLLM_CACHE_ROOT:-$XDG_CACHE_HOME/vllm}"
# Node-local: a shared file system is slow for temporary files and two nodes would meet there.
export TMPDIR="${TMPDIR:-/tmp/primebeaker-$LAUNCH_ID}"
mkdir -p "$OUTPUT_DIR" "$XDG_CACHE_HOME" "$HF_HOME" "$TORCH_HOME" "$TORCHINDUCTOR_CACHE_DIR" "$TRITON_CACHE_DIR" \
  "$VLLM_CACHE_ROOT" "$TMPDIR"

if [ "$kind" = sft ]; then
  config=$(python3 -c "$prepare_sft") || exit $?
  exec sft @ "$config"
fi

config=$(python3 -m primebeaker.launch.task.prepare_rl) || exit $?
if [ -n "${GATEWAY_PORT:-}$services" ]; then
  trap - EXIT TERM INT
  [ -z "$services" ] || export PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID BEAKER_TOKEN
  exec python3 -m primebeaker.multinode single-node-rl --config "$config"
fi
exec rl @ "$config"
