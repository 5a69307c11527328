# place_input PATH OFFSET [BYTES]: write standard input (BYTES of it) at OFFSET of PATH, mode 0600.
# Prints how long the file is afterwards.
place_input() {
  local path=$1 offset=$2
  if [[ $offset == 0 ]]; then
    rm -rf -- "$path"
    mkdir -p -- "${path%/*}/"
    (
      umask 077
      : >"$path"
    )
    chmod 600 -- "$path"
  else
    truncate -s "$offset" -- "$path"
  fi
  if (($# > 2)); then head -c "$3" >>"$path"; else cat >>"$path"; fi
  wc -c <"$path"
}
