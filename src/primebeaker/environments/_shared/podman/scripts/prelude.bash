# The first part of every control script. The environment is empty; standard input begins with a line that holds a fresh
# random token, so that nothing which somebody else prints can be taken for an answer.
# System folders first: what a task installs under /usr/local does not stand in for coreutils here.
PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin
LANG=C.UTF-8
# From the table of users, since there is no variable of that name now.
HOME=~
export PATH LANG HOME
umask 022
IFS= read -r token || exit 90

answer_begins() { printf '\n%s\n' "$token"; }
answer_ends() { printf '\n%s\n' "$token"; }

# is_dead PID: there is no such process, or it waits to be reaped.
is_dead() {
  local stat
  { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
  stat=${stat##*) }
  [[ $stat == [ZX]* ]]
}
