# write.bash PATH OFFSET: put what is left of standard input at OFFSET bytes of PATH, which then ends there.
# Asked twice it does the same again. A first piece (offset 0) replaces whatever is at PATH.
answer_begins
place_input "$1" "$2" 2>&1
answer_ends
