# sweep: SIGKILL every process of the container but PID 1 and this shell with what the service started it by.
# Sets `swept` (done, skipped, incomplete) and adds to `killed`. It does nothing where PID 1 is not `sleep infinity`, which
# is what the service starts a session container with: a host must never be swept.
swept=skipped
killed=0

is_session_container() {
  local first='' second='' more=''
  {
    IFS= read -r -d '' first
    IFS= read -r -d '' second
    IFS= read -r -d '' more
  } 2>/dev/null </proc/1/cmdline
  [[ $first == sleep && $second == infinity && -z $more ]]
}

# parent_of PID: sets `parent`; 0 for what was started from outside the container.
parent_of() {
  local stat
  parent=
  { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  stat=${stat##*) }
  stat=${stat#* }
  parent=${stat%% *}
}

sweep() {
  swept=skipped
  is_session_container || return 0
  local -A kept=([1]=1 [$$]=1) seen=()
  local pid=$$ parent pass left folder timeout
  timeout=$(type -P timeout)
  # The service starts a command by `timeout`, or by a shell that has no parent here. A login shell between them and
  # this one is a start-up file that runs us as its child, to go on beside us.
  while parent_of "$pid" && ((parent > 1)); do
    pid=$parent
    if ! parent_of "$pid" || ((parent <= 1)) || [[ -n $timeout && /proc/$pid/exe -ef $timeout ]]; then
      kept[$pid]=1
    fi
  done
  for pass in 1 2 3 4 5 last; do
    left=0
    for folder in /proc/[0-9]*; do
      pid=${folder#/proc/}
      if [[ -n ${kept[$pid]-} ]] || is_dead "$pid"; then continue; fi
      left=1
      [[ $pass == last ]] && break
      kill -9 "$pid" 2>/dev/null || continue
      [[ -n ${seen[$pid]-} ]] || killed=$((killed + 1))
      seen[$pid]=1
    done
    if ((left == 0)); then
      swept=done
      return 0
    fi
    [[ $pass == last ]] || sleep 0.05
  done
  swept=incomplete
}
