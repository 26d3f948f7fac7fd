"""What a followed script prints, and that bash prints the same."""

import subprocess

import pytest

from agentloop.trainer.from_verl.shell.interpreter import follow
from agentloop.trainer.from_verl.shell.unknown import plain

SNIPPETS = [
    ("echo a  b 'c  d' \"e  f\"", "a b c  d e  f\n"),
    ("x='a  b'; echo $x \"$x\" '$x' \\$x", "a b a  b $x $x\n"),
    ("x=1; echo ${x}2 ${y:-d} ${x:+s} ${y-u} ${y:-\"q  q\"} ${y:-a  b} \"${y:-'q'}\"", "12 d s u q  q a b 'q'\n"),
    ("echo ${y:=set} $y; z=; echo [${z-unset}] [${z:-empty}]", "set set\n[] [empty]\n"),
    ("p=/a/b.tar.gz; echo ${p##*/} ${p%.*} ${p%%.*} ${p#*/} ${#p}", "b.tar.gz /a/b.tar /a/b a/b.tar.gz 11\n"),
    ("p=a.b-c; echo ${p//./_} ${p/[.-]/X} ${p/#a/Z} ${p/%c/Z} ${p^^} ${p^} ${p:1:3} ${p: -2}",
     "a_b-c aXb-c Z.b-c a.b-Z A.B-C A.b-c .b- -c\n"),
    ("p=Qwen/Q-8B; echo ${p,,} ${p//\\//_} \"${p//-*B/}\"", "qwen/q-8b Qwen_Q-8B Qwen/Q\n"),
 
    ("a=(1 'b c' \"d\"); a+=(e); echo ${#a[@]} ${a[1]} ${a[-1]} ${!a[@]}; "
     "printf '<%s>' \"${a[@]}\" ${a[@]} \"${a[*]}\"",
     "4 b c e 0 1 2 3\n<1><b c><d><e><1><b><c><d><e><1 b c d e>"),
    ("a=(x y z); echo ${a[@]:1:2} ${a[@]/y/Y} $a \"${a[@]#x}\"; unset 'a[1]'; echo ${!a[@]}",
     "y z x Y z x  y z\n0 2\n"),
    ("declare -A m=([k]=v [l]=w); echo ${m[k]} ${m[l]}; m[n]=3; echo ${#m[@]}", "v w\n3\n"),
    ("e=(); printf '<%s>' \"${e[@]}\" end", "<end>"),
 
    ("echo $((1 + 2 * 3)) $(( (1 + 2) * 3 )) $((7 / -2)) $((-7 % 3)) "
     "$((2 ** 10)) $((1 << 4 | 1)) $((0x10 + 010 + 2#11))",
     "7 9 -3 -1 1024 17 27\n"),
    ("n=4; echo $((n++ + ++n)) $n $((n > 5 ? n : 0)) $((n += 2)) $((!n)) $((n == 8 && 1)); ((n--)); echo $n",
     "10 6 6 8 0 1\n7\n"),
    ("x='1 + 2'; y=x; echo $((y * 2)) $((${x} * 2)) $(((1024 * 2) + 1024))", "6 5 3072\n"),
    ("echo $((9223372036854775807 + 1))", "-9223372036854775808\n"),
    ("if [ 1 -lt 2 ] && [[ abc == a*c ]]; then echo yes; else echo no; fi", "yes\n"),
    ("x=gpu; [[ $x == npu || ( $x = gpu && -n $x ) ]] && echo y; [[ ! $x != g?u ]] && echo z; "
     "[[ $x == \"g*\" ]] || echo q",
     "y\nz\nq\n"),
 
    ("[ -z \"$u\" -a a = a ] && echo 1; [ ! -n '' ] && echo 2; test a != b -o a = b && echo 3; "
     "[ x -eq 1 ] 2>/dev/null; echo $?",
     "1\n2\n3\n2\n"),
    ("if false; then echo a; elif true; then echo b; fi; ! true; echo $?", "b\n1\n"),
    ("for i in 1 2 3; do [ $i = 2 ] && continue; echo $i; done; for ((i=0; i<3; i++)); do echo -n $i; done",
     "1\n3\n012"),
    ("i=0; while true; do i=$((i+1)); if [ $i -gt 3 ]; then break; fi; done; until [ $i -le 2 ]; do ((i--)); "
     "done; echo $i",
     "2\n"),
    ("for i in a b; do for j in 1 2; do [ $j = 2 ] && continue 2; echo $i$j; done; done", "a1\nb1\n"),
    ("case qwen3-8b in llama*) echo l;; *8b|*7b) echo small;& x) echo fall;; *) echo no;; esac", "small\nfall\n"),
    ("case '*' in \"*\") echo star;; esac; case b in [!a]) echo notA;; esac", "star\nnotA\n"),
    ("f() { local x=$1; y=$x; echo \"$# $*\"; return 3; }; x=o; f a b; echo $? $x $y; function g { f q; }; g",
     "2 a b\n3 o a\n1 q\n"),
    ("set -- a 'b c' d; shift; echo $# \"$1\"; printf '<%s>' \"$@\" $@; echo ${@:2}", "2 b c\n<b c><d><b><c><d>d\n"),
    ("x=$(echo a; echo b); echo \"$x\" $x `echo c`; echo $(echo \"$(echo 'n n')\")", "a\nb a b c\nn n\n"),
    ("echo $(basename -- /a/b.sh .sh) $(dirname /a/b/c) $(dirname x) $(seq 3) $(seq 2 2 6)", "b /a/b . 1 2 3 2 4 6\n"),
    ("cat <<EOF\n$((1+1)) \"q\" \\$x\nEOF\ncat <<'EOF'\n$x\nEOF\ncat <<-EOF\n\ttab\n\tEOF\ncat <<<\"a b\"",
     '2 "q" $x\n$x\ntab\na b\n'),
    ("x=$(cat <<EOF\nin (here)\nEOF\n); echo [$x]", "[in (here)]\n"),
    ("echo {a,b}{1..2} {3..1} x{y} '{a,b}' {a,\"b c\"} {01..03}", "a1 a2 b1 b2 3 2 1 x{y} {a,b} a b c 01 02 03\n"),
    ("echo 'a'\\\n'b' \"c \\\nd\" e \\\nf # comment\n# g", "ab c d e f\n"),
    ("x=1 y=2; x=3 eval 'echo $x $y'; echo $x; n=x; echo ${!n}", "3 2\n1\n1\n"),
    ("( x=sub; echo $x ); echo [$x]; { x=group; }; echo $x; x=p | true; echo $x", "sub\n[]\ngroup\ngroup\n"),
    ("echo a,b,c | tr ',' ' ' | cut -d ' ' -f 2; printf 'b\\na\\n' | sort | head -n 1; printf 'x\\ny\\n' | wc -l",
     "b\na\n2\n"),
    ("printf 'k v w\\nl u\\n' | while read -r a b; do echo \"$b/$a\"; done", "v w/k\nu/l\n"),
    ("IFS=, read -r -a p <<< 'a,b,c'; echo ${p[2]} ${#p[@]}; IFS=:; x=a:b; echo $x \"$x\"", "c 3\na b a:b\n"),
    ("echo $'a\\tb\\x41\\'' \"$(printf '%s-%03d-%.2f' s 7 1.5)\"; printf '%s\\n' a b", "a\tbA' s-007-1.50\na\nb\n"),
    ("echo a >/dev/null; echo b 2>&1; x=$(echo err >&2) 2>/dev/null; echo [$x]", "b\n[]\n"),
    ("echo a && echo b || echo c; false && echo d || echo e; true; echo $?", "a\nb\ne\n0\n"),
    ("x=a; x+=b; a=(1); a[2]=3; a[0]+=9; echo $x ${a[@]}; export E=1 F=\"2 3\"; echo $E $F; readonly R=r; echo $R",
     "ab 19 3\n1 2 3\nr\n"),
    ("exit 0; echo never", ""),
]  # fmt: skip


@pytest.mark.parametrize(("script", "printed"), SNIPPETS)
def test_a_snippet(script: str, printed: str):
    record = follow(script, "run.sh", [], {"PWD": "/"})
    assert (plain(record.printed), record.complaint) == (printed, "")


@pytest.mark.slow
@pytest.mark.parametrize(("script", "printed"), SNIPPETS)
def test_bash_prints_the_same(script: str, printed: str):
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert run.stdout == printed
