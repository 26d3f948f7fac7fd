# Executed by bash in the sandbox before the script: no program of the script is started, each is recorded.
# Variables: __records is a folder for the records; __marked is 1 if what is unknown prints marks, else empty.

# Record the words of a program. Its output is unknown: nothing, or a mark.
__unknown() {
    local id=unknown_${EPOCHREALTIME/[.,]/_}_$BASHPID
    printf '%s\0' "$id" $# "$@" > "$__records/$id"
    case $1 in
        mkdir | rm | cp | mv | ln | touch | chmod | pkill) return 0 ;;
        curl*) return 1 ;;
        python*) [[ $2 != -c && $2 != - ]] || return 1 ;; # it asks for something that is not there
    esac
    [[ -z $__marked ]] || echo "$id"
}
command_not_found_handle() { __unknown "$@"; }

# Run a program that computes text from its input. If it fails, it wants more than text: its output is unknown.
__text() {
    local text mark status=0
    IFS= read -rd '' text
    if [[ $1 != cat && $text == *unknown_* ]]; then
        while [[ $text =~ unknown_[[:alnum:]_]+ ]]; do
            mark=$BASH_REMATCH text=${text#*"$mark"}
            echo "$mark"
        done
    elif [[ $text || $1 != wc ]]; then # a count of no lines may be one of unknown lines
        printf '%s' "$text" | "/usr/bin/$1" "${@:2}" 2> /dev/null || status=$?
        [[ $1 == grep && $status == 1 ]] && return 1
        ((status == 0)) || __unknown "$@"
    fi
}
for __name in awk cat cut grep head sed sort tail tr uniq wc; do eval "$__name() { __text $__name \"\$@\"; }"; done
for __name in basename date dirname expr nproc seq uname; do eval "$__name() { /usr/bin/$__name \"\$@\"; }"; done
tee() { cat; }
whoami() { echo "$USER"; }

# Folders and files of the machine are not there, so these compute with names only.
__path() { /usr/bin/realpath -ms -- "/$([[ $1 == /* ]] || echo "$PWD")/$1"; }
realpath() { __path "${@: -1}"; }
readlink() { __path "${@: -1}"; }
cd() {
    (($#)) || set -- "$HOME"
    PWD=$(__path "${@: -1}")
}
pushd() { cd "$@"; }
popd() { return 0; }
pwd() { echo "$PWD"; }
source() { printf '%s\0' sourced 1 "$1" > "$__records/sourced_${EPOCHREALTIME/[.,]/_}_$BASHPID"; }
function . { source "$@"; }

# What would look for programs, replace this shell, wait, or end the recording.
exec() { (($#)) || return 0; "$@"; exit; }
command() { case $1 in -v | -V) return 1 ;; *) "$@" ;; esac; }
type() { return 1; }
which() { return 1; }
hash() { return 0; }
kill() { return 0; }
sleep() { ((++__slept < 100)) || exit 125; } # it waits for something that does not happen here
trap() { return 0; }

unset HOSTNAME __name
LC_ALL=C.UTF-8
SCRIPT_SOURCE=$0 # the scripts have this name instead of BASH_SOURCE
PS4=$'\x1e${BASH_SOURCE[0]##*/}\x1f$PWD\x1f'
BASH_XTRACEFD=8
set -o functrace
# Before each command: programs cannot be found, a failure ends nothing, and the trace goes on.
builtin trap 'set +eu -x; PATH=/nowhere' DEBUG
