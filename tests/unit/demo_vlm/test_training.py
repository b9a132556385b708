"""Pictures that are put together, weights to begin with, steps that go on where they stopped, and what is shipped in the end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from demo_vlm.dataset.scenes import SHAPES, Item, Scene, sample_crowd

torch = pytest.importorskip("torch")

from demo_vlm.dataset import stencils as stencils_module  # noqa: E402
from demo_vlm.dataset.batches import crowd_batch, drawn_batch, scene_batch  # noqa: E402
from demo_vlm.dataset.facts import SLOTS  # noqa: E402
from demo_vlm.dataset.geometry import CELL_OF_PATCH, GRID, IMAGE_SIZE, PATCH_IN_CELL  # noqa: E402
from demo_vlm.dataset.stencils import Stencils  # noqa: E402
from demo_vlm.training.beginnings import begin  # noqa: E402
from demo_vlm.training.course import Course  # noqa: E402
from demo_vlm.training.descent import Descent  # noqa: E402
from demo_vlm.training.export import export  # noqa: E402
from demo_vlm.training.muon import orthogonalised  # noqa: E402
from demo_vlm.training.vision import VisionPart  # noqa: E402


@pytest.fixture(scope="module")
def stencils(tmp_path_factory: pytest.TempPathFactory) -> Stencils:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stencils_module, "_COUNT", 9)
        return Stencils.load(tmp_path_factory.mktemp("stencils") / "stencils.pt")


def test_what_is_put_together_shows_each_item_in_its_cell(stencils: Stencils) -> None:
    for kind in SHAPES:
        pixels = stencils.compose([Scene((Item(kind, "blue", 0.2, 0.8, 0.25),), dark=False)], random.Random(1))[0]
        assert pixels.shape == (3, IMAGE_SIZE, IMAGE_SIZE)
        assert -1 <= pixels.min() <= pixels.max() <= 1
        middles = pixels.view(3, 3, 32, 3, 32)[:, :, 12:20, :, 12:20].mean((2, 4))
        blue_less_red = middles[2] - middles[0]
        assert blue_less_red[2, 0] > 0.5, kind
        assert blue_less_red.flatten().sort().values[-2] < 0.2, kind


def test_a_batch_is_the_same_for_a_name_and_another_for_another(stencils: Stencils) -> None:
    first, again, other = (scene_batch(stencils, name, 3) for name in ("a", "a", "b"))
    assert torch.equal(first.pixels, again.pixels)
    assert torch.equal(first.facts, again.facts)
    assert not torch.equal(first.pixels, other.pixels)
    assert first.facts.shape == drawn_batch("a", 3).facts.shape == (3, len(SLOTS))
    assert crowd_batch(stencils, "a", 3).patches.shape == (3, 2, GRID**2)


@pytest.mark.model
def test_first_layers_begin_by_looking_at_the_own_cell(stencils: Stencils) -> None:
    torch.manual_seed(0)
    vision = VisionPart()
    scenes = [sample_crowd(random.Random(seed)) for seed in range(16)]
    pixels = stencils.compose(scenes, random.Random(0))
    begin(vision, pixels)
    layer = vision.tower.encoder.layers[0]
    hidden = layer.layer_norm1(vision.tower.embeddings(pixels))
    queries, keys = (
        projection(hidden).unflatten(-1, (layer.self_attn.num_heads, -1)).transpose(1, 2)
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj)
    )
    looks = torch.softmax(queries @ keys.mT * layer.self_attn.scale, dim=-1)
    wanted = torch.tensor(
        [
            [next(p for p in range(GRID**2) if (CELL_OF_PATCH[p], PATCH_IN_CELL[p]) == (cell, head)) for cell in CELL_OF_PATCH]
            for head in range(4)
        ]
    )
    # Where a patch has much in it, less is left for saying which one it is.
    assert looks.gather(-1, wanted[None, :, :, None].expand(len(scenes), -1, -1, -1)).mean() > 0.5


def test_directions_are_orthogonal() -> None:
    for shape in ((3, 8, 8), (2, 4, 16), (1, 16, 4)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
        assert values.min() > 0.3
        assert values.max() < 1.5


def course_of(path: Path, num_steps: int) -> tuple[Course, Descent, torch.nn.Linear]:
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 4)
    descent = Descent({module: 0.1}, {}, num_steps)
    return Course(path, descent, 2, module=module), descent, module


def test_a_course_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def run(path: Path, stop_after: int | None = None) -> torch.nn.Linear:
        course, descent, module = course_of(path, 6)
        for step in course:
            if step == stop_after:
                break
            descent.step(module(torch.full((1, 4), float(step + 1))).square().sum(), step)
            course.note(step=step)
        return module

    whole = run(tmp_path / "whole.pt")
    run(tmp_path / "parts.pt", stop_after=3)
    assert torch.equal(run(tmp_path / "parts.pt").weight, whole.weight)
    course, _, module = course_of(tmp_path / "whole.pt", 6)
    assert not course.is_new
    assert torch.equal(module.weight, whole.weight)
    assert list(course) == []


@pytest.mark.model
def test_what_is_exported_is_what_ships(tmp_path: Path) -> None:
    """Names, shapes and types, so that the part in the repository is one that this training makes."""
    from safetensors import safe_open
    from triptych_cli.models.fetch import VISION_PARTS
    from triptych_cli.models.join_vision import VISION_WEIGHTS

    torch.save({"vision": VisionPart().state_dict()}, tmp_path / "project.pt")
    export(tmp_path / "project.pt", tmp_path / "made.safetensors")
    made, shipped = (
        {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in _tensors(safe_open(path, "pt"))}
        for path in (tmp_path / "made.safetensors", VISION_PARTS / "smollm2-135m-vision" / VISION_WEIGHTS)
    )
    assert made == shipped


def _tensors(file) -> list[tuple[str, torch.Tensor]]:
    return [(name, file.get_tensor(name)) for name in file.keys()]  # noqa: SIM118 - it is no dictionary
