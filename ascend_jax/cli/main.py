"""``ascend-jax``: the command line."""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from absl.flags import argparse_flags

from ascend_jax.cli.errors import UsageError

_OWN_TIMES = "your own times, which replace predicted ones: operator,shape,dtype,us or an msprof op_summary"


class _Parser(argparse_flags.ArgumentParser):
    """A parser whose complaints are one line; each says how to see the options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = _Parser(prog="ascend-jax", description="The Ascend CANN runtime, simulated in JAX: no card needed.")
    top.add_argument("--version", action="version", version=f"ascend-jax {version('ascend-jax')}")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser, metavar="COMMAND")
    _add_run(commands)
    chips = commands.add_parser("chips", help="list the chips, or show all that is known of one")
    chips.add_argument("name", nargs="?", help="chip to show, for example Ascend910B2")
    chips.add_argument("--json", action="store_true", help="print JSON")
    _add_timing(commands)
    info = commands.add_parser("info", help="versions, and the card a program sees")
    info.add_argument("--chip", default="Ascend910B2", metavar="NAME", help="chip (default %(default)s)")
    info.add_argument("--json", action="store_true", help="print JSON")
    return top


def _add_timing(commands: argparse._SubParsersAction) -> None:
    check = commands.add_parser("validate", help="compare predicted times with a file of measurements")
    check.add_argument("--targets", metavar="CSV", help="measurements (default: those that the model was fitted to)")
    check.add_argument("--measurements", metavar="CSV", help=_OWN_TIMES)
    check.add_argument("--json", action="store_true", help="print JSON")
    roof = commands.add_parser(
        "roofline",
        help="operators or a program against the peak and the memory rate of a chip",
        epilog="example: ascend-jax roofline matmul:4096x4096x4096 flash_attention:1x32x4096x4096x128",
    )
    roof.add_argument("operators", nargs="*", metavar="NAME:SIZES", help="operator and shape, sizes joined by x")
    roof.add_argument("--dtype", choices=("float16", "bfloat16", "float32", "int8"), default="float16")
    roof.add_argument("--chip", default="Ascend910B2", metavar="NAME", help="chip (default %(default)s)")
    roof.add_argument("--program", metavar="FILE", help="saved program whose kernels to draw")
    roof.add_argument("--measurements", metavar="CSV", help=_OWN_TIMES)
    roof.add_argument("--svg", metavar="FILE", help="write the picture to this .svg file")
    roof.add_argument("--json", action="store_true", help="print JSON")


def _add_run(commands: argparse._SubParsersAction) -> None:
    run = commands.add_parser("run", help="run an operator on a simulated card")
    jobs = run.add_subparsers(dest="job", required=True, parser_class=_Parser, metavar="JOB")
    job = jobs.add_parser(
        "flash-attention",
        help="FlashAttention forward, from host call to checked result",
        description="Run FlashAttention forward on a simulated card and check it against float64.",
        epilog="example: ascend-jax run flash-attention --heads 8 --seq 2048 --causal --trace trace.json",
    )
    job.add_argument("--input", metavar="FILE", help=".npz file with arrays q, k, v as [batch, heads, seq, dim]")
    job.add_argument("--batch", type=int, help="batch size (default 1)")
    job.add_argument("--heads", type=int, help="query heads (default 32)")
    job.add_argument("--kv-heads", type=int, help="key and value heads (default: as many as heads)")
    job.add_argument("--seq", type=int, help="query length (default 1024)")
    job.add_argument("--kv-seq", type=int, help="key and value length (default: as long as seq)")
    job.add_argument("--dim", type=int, help="head dimension (default 128)")
    job.add_argument("--dtype", choices=("float16", "bfloat16", "float32"), help="element type (default float16)")
    job.add_argument("--causal", action="store_true", help="row i sees key j only if j <= i + kv_seq - seq")
    job.add_argument("--seed", type=int, help="seed of the random inputs (default 0)")
    job.add_argument(
        "--chip",
        default="Ascend910B2",
        metavar="NAME",
        help="chip, see `ascend-jax chips` (default %(default)s)",
    )
    job.add_argument("--streams", choices=("fused", "per-head"), default="fused", help="one launch, or one per head")
    job.add_argument("--cards", type=int, metavar="N", help="run on so many simulated cards")
    job.add_argument(
        "--shard",
        choices=("heads", "sequence", "ulysses"),
        help="with --cards: how they share the work (default heads); sequence is a ring, in zig-zag if causal",
    )
    job.add_argument(
        "--carrier",
        choices=("pmap", "shard_map", "vmap"),
        help="with --cards: what runs them: vmap on one XLA device (default), the others on one for each card",
    )
    job.add_argument("--measurements", metavar="CSV", help=_OWN_TIMES)
    job.add_argument("--output", metavar="FILE", help="write attention_out, softmax_max, softmax_sum to this .npz file")
    job.add_argument("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev to this .json file")
    job.add_argument("--json", action="store_true", help="print one JSON object")


def main(argv: Sequence[str]) -> int:
    """Run one command; return the exit status: 0, or 2 for a mistake in the request."""
    options = parser().parse_args(argv[1:])
    try:
        match options.command:
            case "run":
                return _run_flash_attention(options)
            case "chips":
                return _chips(options)
            case "validate":
                return _validate(options)
            case "roofline":
                return _roofline(options)
            case _:
                return _info(options)
    except UsageError as error:
        print(f"ascend-jax: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone; there is nobody to tell
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"ascend-jax: {error.strerror or error}; nothing more was written", file=sys.stderr)
        return 2


def run() -> NoReturn:
    """Entry point of the installed script."""
    sys.exit(main(sys.argv))


def _run_flash_attention(options: argparse.Namespace) -> int:
    # imported here so that --help and mistakes in the flags answer at once
    from ascend_jax.cli import attention_job, attention_output, attention_report, files
    from ascend_jax.cli.attention_inputs import AttentionRequest

    paths = {"--output": options.output, "--trace": options.trace}
    files.check_writable({flag: path for flag, path in paths.items() if path is not None})
    names = ("input", "batch", "heads", "kv_heads", "seq", "kv_seq", "dim", "dtype", "seed")
    request = AttentionRequest(**{name: getattr(options, name) for name in names})
    if options.cards is not None:
        return _run_on_cards(options, request)
    for flag in ("shard", "carrier"):
        if getattr(options, flag) is not None:
            raise UsageError(f"--{flag} {getattr(options, flag)}: needs --cards N")
    own = None if options.measurements is None else files.own_measurements(options.measurements)
    per_head = options.streams == "per-head"
    result = attention_job.run(
        request, chip=options.chip, is_causal=options.causal, per_head=per_head, measurements=own
    )
    written = attention_output.write(result, output=options.output, trace=options.trace)
    if options.json:
        print(json.dumps(attention_report.as_json(result), allow_nan=False))
    else:
        print(attention_report.as_text(result))
        if written:
            print("\n" + "\n".join(written))
    return 0


def _run_on_cards(options: argparse.Namespace, request: Any) -> int:
    from ascend_jax.cli import cards_job

    if options.measurements is not None:
        raise UsageError("--measurements: replaces the times of one card's launches; leave --cards out")
    if options.streams != "fused":
        raise UsageError(f"--streams {options.streams}: on several cards every card has one stream for kernels")
    result = cards_job.run(
        request,
        chip=options.chip,
        is_causal=options.causal,
        cards=options.cards,
        shard=options.shard or "heads",
        carrier=options.carrier,
    )
    written = cards_job.write(result, output=options.output, trace=options.trace)
    if options.json:
        print(json.dumps(cards_job.as_json(result), allow_nan=False))
    else:
        print("\n".join([cards_job.as_text(result), *written]))
    return 0


def _chips(options: argparse.Namespace) -> int:
    from ascend_jax.cli import chip_report

    print(chip_report.chips(options.name, as_json=options.json))
    return 0


def _validate(options: argparse.Namespace) -> int:
    from ascend_jax.cli import validation_report

    print(validation_report.validate(options.targets, measurements=options.measurements, as_json=options.json))
    return 0


def _roofline(options: argparse.Namespace) -> int:
    from ascend_jax.cli import files, roofline_report

    files.check_writable({"--svg": options.svg} if options.svg is not None else {})
    text = roofline_report.report(
        options.operators,
        dtype=options.dtype,
        chip=options.chip,
        program=options.program,
        svg=options.svg,
        measurements=options.measurements,
        as_json=options.json,
    )
    print(text)
    return 0


def _info(options: argparse.Namespace) -> int:
    from ascend_jax.cli import chip_report

    print(chip_report.info(options.chip, as_json=options.json))
    return 0


if __name__ == "__main__":
    run()
