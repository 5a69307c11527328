#!/bin/sh
# Print the path of a Python 3.12: PYTHON, the PATH, pyenv, or one that uv manages. Else say in one line how to get it.
works() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1; }

for candidate in "${PYTHON:-}" python3.12 python3 python; do
    [ -n "$candidate" ] && path=$(command -v "$candidate" 2>/dev/null) && works "$path" && { echo "$path"; exit 0; }
done
for path in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python /opt/homebrew/bin/python3.12; do
    [ -x "$path" ] && works "$path" && { echo "$path"; exit 0; }
done
if command -v pyenv >/dev/null 2>&1; then
    for path in "$(pyenv root 2>/dev/null)"/versions/3.12*/bin/python; do
        [ -x "$path" ] && works "$path" && { echo "$path"; exit 0; }
    done
fi
if command -v uv >/dev/null 2>&1; then
    path=$(uv python find --no-project 3.12 2>/dev/null) || path=$(uv python install -q 3.12 2>/dev/null && uv python find --no-project 3.12 2>/dev/null)
    [ -n "$path" ] && works "$path" && { echo "$path"; exit 0; }
fi
echo "primebeaker needs Python 3.12 and none was found: install it (uv python install 3.12, pyenv install 3.12, or your system's python3.12 package) or set PYTHON=/path/to/python3.12" >&2
exit 2
