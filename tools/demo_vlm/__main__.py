"""The demo vision-language model: train it, evaluate it, draw examples.

python -m tools.demo_vlm train                    # about 70 minutes of one core; resumes after an interruption
triptych fetch smollm2-135m-vision                # joins the trained part with SmolLM2
python -m tools.demo_vlm evaluate DIRECTORY       # of the joined checkpoint, as `triptych fetch` prints it
python -m tools.demo_vlm examples DIRECTORY
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_VISION_PART = _ROOT / "cli" / "triptych_cli" / "models" / "smollm2-135m-vision"
_STAGES = ("look", "pretrain", "codebook", "project")


def _train(options: argparse.Namespace) -> None:
    from triptych_common.model.store import TEXT_MODEL, resolve_model

    from .dataset.stencils import Stencils
    from .training import codebook, export, pretrain, project

    for directory in (options.work, options.out):
        directory.mkdir(parents=True, exist_ok=True)
    text_model = options.text_model or resolve_model(TEXT_MODEL)
    stencils = Stencils.load(options.work / "stencils.pt")
    stages = {
        "look": lambda: pretrain.look(options.work, stencils, options.look_steps),
        "pretrain": lambda: pretrain.pretrain(options.work, stencils, options.pretrain_steps),
        "codebook": lambda: codebook.train_codebook(options.work, text_model, options.codebook_steps),
        "project": lambda: project.project(options.work, stencils, options.project_steps),
    }
    for stage in options.stages:
        stages[stage]()
    if options.stages[-1] == _STAGES[-1]:
        size = export.export(options.work / "project.pt", options.out / "vision.safetensors")
        print(f"{options.out}: {size / 1e6:.1f} MB")


def _evaluate(options: argparse.Namespace) -> None:
    from .training.evaluate import evaluate

    result = evaluate(options.directory, options.scenes)
    print("\n".join(result.lines()))
    sys.exit(result.accuracy < options.least)


def _examples(options: argparse.Namespace) -> None:
    from .dataset.examples import write_examples

    write_examples(options.directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    train = commands.add_parser("train", help="all stages, then write the vision part")
    train.add_argument(
        "--work", type=Path, default=_ROOT / "build" / "demo_vlm", help="checkpoints, from which a later run resumes"
    )
    train.add_argument("--out", type=Path, default=_VISION_PART, help="where the vision part is written")
    train.add_argument("--text-model", type=Path, help="directory of the text model; by default the fetched built-in one")
    train.add_argument("--stages", nargs="+", choices=_STAGES, default=_STAGES, help="run only these stages")
    for stage, steps in (("look", 500), ("pretrain", 400), ("codebook", 720), ("project", 300)):
        train.add_argument(f"--{stage}-steps", type=int, default=steps)
    train.set_defaults(run=_train)
    evaluate = commands.add_parser("evaluate", help="ask a joined checkpoint about pictures that training did not see")
    evaluate.add_argument("directory", type=Path)
    evaluate.add_argument("--scenes", type=int, default=200)
    evaluate.add_argument("--least", type=float, default=0.95, help="least share of right answers; below it the exit status is 1")
    evaluate.set_defaults(run=_evaluate)
    examples = commands.add_parser("examples", help="draw the pictures of examples/")
    examples.add_argument("directory", type=Path)
    examples.set_defaults(run=_examples)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
