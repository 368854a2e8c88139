"""Reading command lines without a shell, and the arithmetic of batch sizes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from grpo_trainer.config.swift_options import MS_SWIFT
from grpo_trainer.errors import UsageError
from grpo_trainer.imports.batch import Batch, generation_batch
from grpo_trainer.imports.options import Options
from grpo_trainer.imports.words import commands_of

SCRIPTS = {
    "continued": "printf '%s|' a \\\n  b 'c d' \"e f\"  # a comment\n",
    "variables": "A=1 B=$A; C=${A}2; printf '%s|' x${C}y \"$C\" '$C' ${D:-none} ${A:-no}\n",
    "glued": "printf '%s|' repetition\\\n--use_vllm true\n",
    "escapes": 'printf "%s|" a\\ b "say \\"x\\"" \'it\'"\'"\'s\' AI-MO/Numina#500 {a}\n',
    "comment inside": "printf '%s|' a `# nothing` b\n",
    "joined": "printf '%s|' --a=b\"c d\"'e'\n",
    "a variable with blanks": "A=' --a 1  --b\\n2 '; B=$A; printf '%s|' x $A\"$A\" y$A-z $B --c=$A\n",
    "an empty variable": "A=; printf '%s|' a $A \"$A\" '' b$A\n",
    "appended": "A='--a 1'; A+=' --b 2'\nprintf '%s|' $A\n",
    "an array": "A=(\n  --a 1 # why\n  --b 'c d' \\\n  \"e\"\n)\nA+=(f)\nprintf '%s|' x \"${A[@]}\" ${A[@]} y\n",
    "an array that may be empty": (
        'A=(a \'b c\'); B=(); printf \'%s|\' "${A[@]+"${A[@]}"}" ${A[@]+"${A[@]}"} "${B[@]}" y\n'
    ),
    "arguments": 'A=$1; printf \'%s|\' "$A" $1 --x=$2 ${4:-no} "$@" y ${@:2} $* "${@}"\n',
    "arguments that are shifted": "A=$1; shift\nB=$1; shift 1\nprintf '%s|' $A $B \"$@\" $1\n",
    "a default with others": "A=1; B=${B:-$A/${C:-c}}; printf '%s|' \"${D:-${A}x${B}}\" ${A:-${B}} ${D:-${A} b}\n",
    "defaults of empty ones": 'E=; printf \'%s|\' ${E:-a} x${E-b} ${E:-} ${U-c} "${E:-"d e"}" y\n',
    "defaults that stay": "E=; : ${E:=a} \"${U:=b}\" ${V=c}\n: ${E:=d}\nprintf '%s|' $E $U $V ${W:=$E$U} $W y\n",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="compares with bash")
@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_that_bash_makes(name: str):
    given = ["one_word", "2", "3"]
    shell = subprocess.run(
        ["bash", "-c", SCRIPTS[name], "script", *given], capture_output=True, text=True, check=True, timeout=20
    )
    (command,) = commands_of(SCRIPTS[name], given).commands
    assert command.words[2:] == shell.stdout.removesuffix("|").split("|")


def test_variables_before_a_command_and_exported_ones_reach_it():
    script = commands_of("export A=1\nB=2\nn=7 \\\nC=$n D='x y' run $B\nA=3 other\n")
    assert [(one.variables, one.words) for one in script.commands] == [
        ({"A": "1", "n": "7", "C": "7", "D": "x y"}, ["run", "2"]),
        ({"A": "3"}, ["other"]),
    ]
    (later,) = commands_of("export A=1\nA=2\nrun\n").commands
    assert later.variables == {"A": "2"}


def test_the_script_that_a_shell_is_given_is_read_with_its_variables():
    script = commands_of("export A=1\nB=2 srun -N 2 bash -lc 'export C=3\nrun $A $B \\\n --x \"$C\" $D'\nnext\n")
    assert [(one.variables, one.words) for one in script.commands] == [
        ({"A": "1", "B": "2", "C": "3"}, ["run", "1", "2", "--x", "3", "$D"]),
        ({"A": "1"}, ["next"]),
    ]
    assert [remark for remark in script.remarks if "$D is not set" in remark]


def test_a_shift_in_a_loop_and_the_name_of_the_script_are_named():
    script = commands_of("while read x; do A=$2; shift; done\nrun $A $0\n", ["--a", "1", "2"])
    assert script.commands[-1].words == ["run", "1", "$0"]
    assert any("shift stands in a condition or a loop" in remark for remark in script.remarks)
    assert "$0 is not set in what is imported: write its value in its place" in script.remarks


def test_what_is_set_under_a_condition_of_which_nothing_is_known_is_named():
    script = commands_of('A=(a)\nif [ -f x ]; then A+=(b); else\n C=1\nfi\nD=2\nrun "${A[@]}" $C $D "${E[@]}"\n')
    assert [one.words for one in script.commands] == [["[", "-f", "x", "]"], ["run", "a", "b", "1", "2"]]
    undecided = "is set in a condition or a loop, which is not decided here: what stands last counts"
    assert [remark for remark in script.remarks if "set in" in remark] == [
        f"A {undecided}", f"C {undecided}", "$E is not set in what is imported: write its values in its place"
    ]  # fmt: skip


DECIDED = {
    "if": 'M=a\nif [[ $M == b ]]; then X=1; elif [ "$M" = a ] && [[ -n $M ]]; then X=2\nelse X=3; fi\nX+=y\n',
    "smoke": 'X=9\nif [[ "${SMOKE:-0}" == "1" ]]\nthen\n  X=1\nfi\n',
    "nested": "N=3 X=0\nif [ $N -gt 2 ]; then if [[ ! -z $N || $N -lt 1 ]]; then X=1; else X=2; fi; else X=3; fi\n",
    "case": 'M=b X=0\ncase "$M" in\n  a|c) X=1 ;;\n  b)\n    X=2\n    Y=3 ;;\n  *) X=4 ;;\nesac\nX=$X$Y\n',
    "and": 'M=a X=0; [[ $M == b ]] && X=1; [ "$M" = a ] || X=2; true && X=${X}3\n',
    "groups": "M=a X=0; [ $M = b ] && { X=1; Y=2; }; [ $M = a ] && { X=${X}3; Z=4; }; X=$X${Y:-5}$Z\n",
    "never": "X=x\nif false; then X=1; fi\nif ! true || [ a = b ]; then X=2; fi\n",
    "lines that a command reads": "X=1\ncat <<'END' > /dev/null\nif x; X=2 \"\nEND\n",
    "sums": "N=4 X=$((N * 8 / 3 - ${N}))-$(expr 7 / 2)\n",
    "places": 'X="$(cd "$(dirname "/usr/bin/run.sh")/.." >/dev/null && pwd)/$(basename /a/b.sh .sh)$(dirname /a/b)"\n',
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="compares with bash")
@pytest.mark.parametrize("name", DECIDED)
def test_what_a_script_tells_alone_is_decided_as_bash_does(name: str):
    shell = subprocess.run(
        ["bash", "-c", DECIDED[name] + 'printf %s "$X"'], capture_output=True, text=True, check=True, timeout=20
    )
    script = commands_of(DECIDED[name] + "run $X\n")
    assert script.commands[-1].words == ["run", *shell.stdout.split()]
    assert not any("is set in a condition" in remark for remark in script.remarks)


LOOPS = {
    "while": (
        'M=m L=1 E=\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n    -m|--model) M="$2"; shift 2 ;;\n'
        '    --lr)\n      L="$2"\n      shift\n      shift\n      ;;\n    --n=*) N="${1#*=}"; shift;;\n'
        '    -h) echo usage; exit 0;;\n    *) E="$E $1"; shift ;;\n  esac\ndone\nX="$M $L $N$E"\n'
    ),
    "key": (
        'M=m\nwhile [ "$#" -gt "0" ]\ndo\n key="$1"; case "${key}" in --model) M=$2; shift;; esac\n shift\ndone\nX=$M\n'
    ),
    "empty": 'M=m; while [ -n "$1" ]; do if [ "$1" = --model ]; then M=$2; shift; fi; shift; done; X=$M\n',
    "arithmetic": "M=m; while (( $# )); do [[ $1 == --model ]] && M=$2; shift; done; X=$M$#\n",
    "break": (
        'M=m\nwhile true; do\n case "$1" in\n  --model) M=$2; shift 2;;\n  --lr) L=$2; shift 2; continue; L=9;;\n'
        "  *) break;;\n esac\n N=${N}n\ndone\nX=$M$L$N\n"
    ),
    "getopts": (
        'M=m\nwhile getopts ":m:l:q" opt; do\n case $opt in\n  m) M=$OPTARG ;;\n  l) L=${OPTARG};;\n  q) Q=1;;\n'
        '  \\?) Q=2;;\n esac\ndone\nshift $((OPTIND - 1))\nX="$M $L $Q ${1:-}"\n'
    ),
    "for": 'M=m; for a in "$@"; do case $a in --model=*) M="${a#*=}" ;; esac; done; X=$M\n',
    "for alone": "N=0\nfor a\ndo\n  N=$((N + 1)) L=$a\ndone\nX=$N$L\n",
    "words": "A=/x/m.tar.gz; for a in 1 2 3; do for b in a b; do X=$X$a$b; done; done; X=$X${A##*/}${A%.*}${A%%.*}\n",
    "lines": "for a in 1 2; do\ncat <<END > /dev/null\n done $a\nEND\nX=$X$a; done\ncat <<END > /dev/null\nX=3\nEND\n",
}
LOOPS |= {
    "in a function": f'M=m; parse_args() {{\n  {LOOPS["key"].split(chr(10), 1)[1]}}}\nparse_args "$@"\nX=$M$#\n',
    "behind set": f'set -- --lr 5 "$@" "--n=2 3"\n{LOOPS["while"]}',
    "before set": f"{LOOPS['key']}set -- a --model $M\nX=$X$2$#\n{LOOPS['for']}",
    "words of set": 'set -e; set b "c d"; X="$2$#"; unset M L; set --; X=$X${M:-m}${1:-e}\n',
    "eval": 'C="X=2; N=\\${1:-}"; X=1; eval "$C"; eval X=$X$N\n',
}
GIVEN = ["", "--model q --lr 2", "-m q -l3 -q last", "--n=4 rest --model=a=b", "-q -x --model z", "-qlm 7 -q"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="compares with bash")
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_over_arguments_is_read_as_bash_runs_it(name: str, given: str):
    text = f"L= N= Q= X=\n{LOOPS[name]}"
    shell = subprocess.run(
        ["bash", "-c", f'{text}printf %s "$X"', "script", *given.split()], capture_output=True, text=True, timeout=20
    )
    script = commands_of(f"{text}run $X\n", given.split())
    assert script.commands[-1].words == ["run", *shell.stdout.split()]
    assert not any("condition" in remark for remark in script.remarks)


FUNCTIONS = {
    "later values": "M=old; train() { X=$M; }\nM=new\ntrain\n",
    "own arguments": 'h() {\n  local A="$1" B=${2:-b}; shift; X="$X$A$B$#$1"\n}\nh p; A=z; h q r; X=$X$A$1\n',
    "one that calls another": "function g { X=$X$1; }\nf () { for a in $@; do g $a; done; return; X=; }; f 1 2 3\n",
    "a variable before it": "f() { X=$M; }\nM=1; M=2 f; X=$X$M\n",
    "braces": "f()\n{\n  # don't }\n  cat <<END > /dev/null\n it's }\nEND\n  { X=${M:-}}; }; X=$X\"}\"; }; f\n",
    "in a branch": 'M=a; f() { [ "$1" = b ] && return; X=$1; }; if [ $M = b ]; then f 1; else f 2; fi; f b\n',
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="compares with bash")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_read_where_it_is_called(name: str):
    text = f"X=\n{FUNCTIONS[name]}"
    shell = subprocess.run(
        ["bash", "-c", f'{text}printf %s "$X"', "script", "s"], capture_output=True, text=True, timeout=20
    )
    script = commands_of(f"{text}run $X\n", ["s"])
    assert script.commands[-1].words == ["run", *shell.stdout.split()]


def test_what_sets_variables_and_is_not_followed_is_named():
    text = (
        "set -- $(getopt a)\nread -r A B\nprintf -v C %s x\ndeclare -A D\nlet E=1\nf() { f; }; f\ng() { run $A; }\n"
        "if [ -f x ]; then set -- a; unset F; fi\n"
    )
    script = commands_of(text, ["s"])
    for said in ("set gives the script arguments", "read A B is not", "printf C is not", "declare -A D is not",
                 "let E is not", "f calls itself", "the function g is called nowhere", "set stands in a condition",
                 "unset stands in a condition"):  # fmt: skip
        assert any(said in remark for remark in script.remarks), said


def test_a_script_that_ends_itself_in_a_loop_is_named_and_a_loop_without_an_end_is_read_once():
    text = "while [ $# -gt 0 ]; do case $1 in --a) A=$2; shift 2;; *) echo $1; exit 1;; esac; done\nrun $A\n"
    script = commands_of(text, ["--a", "3", "--b", "4"])
    assert script.commands[-1].words == ["run", "3"]
    assert "the script would end at `exit 1` with these arguments" in script.remarks
    script = commands_of("while [ $# -gt 0 ]; do A=$1; done\nrun $A\n", ["a"])
    assert script.commands[-1].words == ["run", "a"]
    assert any("A is set in a condition or a loop, which is not decided" in remark for remark in script.remarks)


def test_a_branch_that_is_left_out_is_named_and_a_variable_before_the_script_decides():
    text = 'ARGS=(--a)\nif [[ "${SMOKE:-0}" == "1" ]]; then\n  ARGS+=(--b)\nfi\nrun "${ARGS[@]}"\n'
    script = commands_of(text)
    assert script.commands[-1].words == ["run", "--a"]
    assert [remark for remark in script.remarks if 'if [[ "${SMOKE:-0}" == "1" ]]` is left out' in remark]
    script = commands_of(text, variables={"SMOKE": "1"})
    assert (script.commands[-1].words, script.remarks) == (["run", "--a", "--b"], [])


def test_the_folder_of_a_script_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = 'ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"\nrun "$ROOT/x" $0 \\'
    script = commands_of(text, path="a/b.sh")
    assert (script.commands[-1].words, script.remarks) == (["run", f"{tmp_path}/x", "a/b.sh"], [])


def test_what_a_shell_would_compute_stays_as_it_is_written():
    script = commands_of("run $(nproc) `hostname` $UNSET/x\n")
    assert script.commands[0].words == ["run", "$(nproc)", "`hostname`", "$UNSET/x"]
    assert any("$UNSET is not set" in remark for remark in script.remarks)
    assert sum("no shell is run" in remark for remark in script.remarks) == 2


COPIED = {
    "blanks": ("run --a\u00a0b\u3000c", ["run", "--a", "b", "c"], "U+00A0 (no-break space) is read as a blank"),
    "blanks in an array": ('A=(--a\u00a0b)\nrun "${A[@]}"', ["run", "--a", "b"], "U+00A0 (no-break space) is read"),
    "no width": ("run --\u200ba \ufeff b", ["run", "--a", "b"], "U+200B (zero width space) is left out"),
    "curly quotes": ("run “a b” --c=‘d e’ it’s", ["run", "a b", "--c=d e", "it’s"], "“ and ” are read as quot"),
    "in quotes": ("run 'a\u00a0“b”\u200d'", ["run", "a\u00a0“b”\u200d"], None),
    "comment behind the end": ("run a \\ # why\n b", ["run", "a", "b"], "a comment behind the \\"),
    "nothing in quotes": ("run '' b", ["run", "", "b"], None),
}


@pytest.mark.parametrize("name", COPIED)
def test_what_copying_makes_of_a_script_is_read_as_it_was_meant(name: str):
    text, words, remark = COPIED[name]
    script = commands_of(text)
    assert [one.words for one in script.commands] == [words]
    assert any(remark in one for one in script.remarks) if remark else not script.remarks


@pytest.mark.parametrize(
    ("word", "read", "remark"),
    [
        (["—beta", "0.5"], ["0.5"], "—beta is read as --beta"),
        (["–-beta=0.5"], ["0.5"], "–-beta= is read as --beta"),
        (["-beta", "0.5"], ["0.5"], "-beta is read as --beta"),
        (["--beta:", "0.5"], ["0.5"], "--beta: is read as --beta"),
        (["--beta：0.5"], ["0.5"], "--beta： is read as --beta"),
        (["--beta\u00a00.5"], ["0.5"], "--beta\u00a0 is read as --beta"),
        (["--beta", "=", "0.5"], ["0.5"], "--beta = is read as --beta"),
        (["--beta", "-0.5"], ["-0.5"], None),
    ],
)  # fmt: skip
def test_an_option_that_a_page_has_changed_is_that_option(word: list[str], read: list[str], remark: str | None):
    options = Options(MS_SWIFT)
    options.add_words(["--loss_type", "grpo", *word])
    assert options.given == {"loss_type": ["grpo"], "beta": read}
    assert options.remarks == ([remark] if remark else [])


@pytest.mark.parametrize("words", [["--model", "--beta", "0"], ["--beta", "0", "--model"], ["--beta", "--model", "m"]])
def test_an_option_that_has_lost_its_value_is_refused_and_a_flag_is_true(words: list[str]):
    options = Options(MS_SWIFT)
    options.add_words(["--use_vllm", *words])
    assert options.truth("use_vllm") is True
    with pytest.raises(UsageError, match="has no value"):
        _ = options.values("model"), options.number("beta")


def batch(**given: int | None) -> Batch:
    sizes: dict[str, int | None] = {"generation_batch_size": None, "steps_per_generation": None, **given}
    return generation_batch(per_device=4, processes=2, num_generations=8, **sizes)  # type: ignore[arg-type]


def test_a_generation_batch_is_that_of_the_formula():
    one = batch(accumulation=3)
    assert (one.size, one.updates) == (24, 1)
    assert one.formula == "per_device_train_batch_size 4 x 2 processes x gradient_accumulation_steps 3 = 24"
    several = batch(accumulation=2, steps_per_generation=8)
    assert (several.size, several.updates) == (64, 4)
    assert batch(accumulation=2, generation_batch_size=64) == several
    assert [several.batches_of(n, num_iterations=2) for n in (1, 8, 9, 100)] == [1, 1, 2, 13]


def test_an_update_over_several_generation_batches_is_one_batch_here():
    spanning = batch(accumulation=4, steps_per_generation=2)
    assert (spanning.size, spanning.updates) == (32, 1)
    assert spanning.remark is not None
    assert batch(accumulation=2, steps_per_generation=3).remark is not None


def test_sizes_that_trl_refuses_are_refused():
    with pytest.raises(UsageError, match="no multiple"):
        batch(accumulation=1, generation_batch_size=20)
    with pytest.raises(UsageError, match="is not per_device"):
        batch(accumulation=1, generation_batch_size=16, steps_per_generation=4)
