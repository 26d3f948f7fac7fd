# Executed by bash in the sandbox before the script: no program of the script is started, each is recorded.
# Variables: __records is a folder for the records; __marked is 1 if what is unknown prints marks, else empty; __failing
# is 1 if programs fail; __now is the time. Every run of the script has the same time and the same random numbers, so
# only unknown values differ.

# Record the words of a program. Its output is unknown: nothing, or a mark.
__unknown() {
    local id=unknown_${EPOCHREALTIME/[.,]/_}_$BASHPID
    printf '%s\0' "$id" $# "$@" > "$__records/$id"
    case $1 in
        mkdir | rm | cp | mv | ln | touch | chmod | pkill) return 0 ;;
        curl*) [[ $__marked ]] || return 1 ;;
        python*) # a check of what is installed fails, because nothing is there
            [[ $2 != -c && $2 != - || ($__marked && ($2 == - || $3 == *print*)) ]] || return 1
            ;;
    esac
    [[ -z $__failing ]] || return 1
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
for __name in basename dirname expr nproc seq uname; do eval "$__name() { /usr/bin/$__name \"\$@\"; }"; done
date() {
    case " $*" in
        *' -d'* | *' --date'* | *' -f'* | *' --file'* | *' -r'* | *' --reference'*) /usr/bin/date "$@" ;;
        *) /usr/bin/date -d "@$__now" "$@" ;;
    esac
}
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
command() { case $1 in -v | -V) __found command "$@" ;; *) "$@" ;; esac; }
type() { __found type "$@"; }
which() { __found which "$@"; }
__found() { [[ $__marked ]] && __unknown "$@"; }
hash() { return 0; }
kill() { return 0; }
sleep() { ((++__slept < 100)) || exit 125; } # it waits for something that does not happen here
trap() { return 0; }

# Compute; print the mark of an unknown value instead, with 0_ before the name of an unset variable, which counts as 0.
# Before `case`, `for` and `((`, whose traces show what is written: trace the values.
__compute() {
    local __sum=$* __name IFS=' '
    for __name in ${__sum//[!a-zA-Z0-9_]/ }; do
        [[ $__name == [0-9]* ]] || __name+=" ${!__name}"
        case $__name in
            *unknown_[0-9]*) echo "unknown_${__name#*unknown_}" && return ;;
            *unknown_*) echo "unknown_0_${__name#*unknown_}" && return ;;
        esac
    done
    echo $((__sum))
}
__expand() {
    local __words=$BASH_COMMAND __values=() __name
    [[ ${BASH_SOURCE[1]##*/} != start.sh ]] || return
    case $__words in
        'case '*) __words=${__words#case } __words=${__words% in *} ;;
        'for '*' in '*) __words=${__words#* in } ;;
        '(('*) __words=${__words#((} __words=\"${__words%))}\" ;;
        *) return ;;
    esac
    [[ $__words != "$__expanded" || $BASH_COMMAND != for* ]] || return # again in each iteration
    __expanded=$__words
    eval "__values=($__words)" 2> /dev/null
    local IFS=' '
    if [[ $BASH_COMMAND == '(('* ]]; then
        for __name in ${__values//[!a-zA-Z0-9_]/ }; do
            [[ $__name == [0-9]* ]] || __values+=("${!__name}")
        done
    fi
    builtin printf '\x1e%s\x1f%s\x1fcase %s' "${__records##*/}.sh" "$PWD" "${__values[*]}" >&8
}

unset HOSTNAME EPOCHSECONDS __name
EPOCHSECONDS=$__now RANDOM=1 __mark=(x)
LC_ALL=C.UTF-8
SCRIPT_SOURCE=$0 # the scripts have this name instead of BASH_SOURCE
PS4=$'\x1e${BASH_SOURCE[0]##*/}\x1f$PWD\x1f'
BASH_XTRACEFD=8
set -o functrace
# Before each command: programs cannot be found, a failure ends nothing, and the trace goes on.
builtin trap 'set +eu -x; PATH=/nowhere; ${__marked:+__expand "$@"}' DEBUG
