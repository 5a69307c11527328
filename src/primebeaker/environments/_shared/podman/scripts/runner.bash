# runner.bash FOLDER LIMIT WORKDIR: run FOLDER/command with a time limit, its streams in files of a bounded size.
# Leaves in FOLDER: stdout, stderr, and at last `result`: exit code, 1 when the limit was reached, seconds.
folder=$1 limit=$2 workdir=$3
most_kibibytes=8192
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
cd -- "$workdir" 2>/dev/null || cd /

# The first bytes of a stream go to a file, the rest nowhere: an endless printer fills neither the disk nor a pipe.
collect() {
  (
    ulimit -f "$most_kibibytes"
    exec cat
  ) >"$folder/$1" 2>/dev/null
  exec cat >/dev/null
}
exec 3> >(collect stdout)
out=$!
exec 4> >(exec 3>&- && collect stderr)
err=$!

began=0
{ read -r began _ </proc/uptime; } 2>/dev/null
# Job control gives the command a process group of its own, which is killed as a whole.
set -m
/bin/bash --noprofile --norc "$folder/command" </dev/null >&3 2>&4 3>&- 4>&- &
tests=$!
exec 3>&- 4>&-
(
  sleep "$limit"
  : >"$folder/late"
  kill -9 -- "-$tests"
) &
alarm=$!
set +m
wait "$tests"
code=$?
kill -9 -- "-$alarm"
ended=0
{ read -r ended _ </proc/uptime; } 2>/dev/null
for _ in {1..100}; do
  kill -0 "$out" || kill -0 "$err" || break
  sleep 0.02
done
late=0
[[ -e $folder/late ]] && late=1
printf '%s %s %s %s\n' "$code" "$late" "$began" "$ended" >"$folder/result.part"
mv -- "$folder/result.part" "$folder/result"
